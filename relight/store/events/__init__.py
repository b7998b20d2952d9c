"""What changed in the store, in order."""
