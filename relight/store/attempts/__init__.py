"""The attempt store: what runners and the gateway ask for."""
