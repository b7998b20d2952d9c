"""The embedded stack: every process of a cluster on one machine."""
