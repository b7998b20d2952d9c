"""Rollouts that clients enqueue: queue, queries, sweeper, outbox."""
