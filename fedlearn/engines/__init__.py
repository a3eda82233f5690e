"""Where clients run, if not one after another: stacked in one step, or on Flower."""
