"""The in-memory stores, with the same rules as on Postgres."""
