"""The gateway: forwards agents' model calls to engines and records their tokens."""
