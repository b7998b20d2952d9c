"""Spans: taken in, stored, read."""
