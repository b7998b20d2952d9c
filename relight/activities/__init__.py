"""What the workflows call: thin wrappers over plain async functions."""
