"""Makes training rows from generations."""
