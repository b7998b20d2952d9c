"""Rollouts from outside: queue, queries, sweeper, outbox."""
