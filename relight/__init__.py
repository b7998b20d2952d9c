"""Relight: reinforcement learning for AI agents that no crash can undo."""
