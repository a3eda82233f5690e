"""What only the chapters use: figures, explorers, exercises and the class edition."""
