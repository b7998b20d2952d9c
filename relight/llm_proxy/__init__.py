"""The gateway: agents' model calls on their way to an engine, captured token by token."""
