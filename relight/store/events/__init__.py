"""Events: the changes in the store, in order."""
