"""Training data out of generations and spans."""
