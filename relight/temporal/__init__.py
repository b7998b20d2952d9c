"""Code of all Temporal clients and workers: connecting, heartbeats, draining."""
