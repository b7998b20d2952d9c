"""The vocabulary: what travels between Relight's rooms. Light: pydantic and nothing heavier."""
