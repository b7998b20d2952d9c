"""The stores in memory, by the same rules as on Postgres."""
