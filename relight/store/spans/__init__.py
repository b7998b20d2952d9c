"""Spans: ingestion, storage, reading."""
