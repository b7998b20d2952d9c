"""The attempt store: the interface of runners and the gateway to the store."""
