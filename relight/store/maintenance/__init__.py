"""Maintenance of a store: checks, partitions, retention."""
