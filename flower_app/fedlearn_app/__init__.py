"""A run of fedlearn on Flower."""
