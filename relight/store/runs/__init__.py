"""Runs as rows: their life, commands, lineage, health and views."""
