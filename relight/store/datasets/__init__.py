"""Data sets in the store, by name."""
