"""What keeps a store healthy: checks, partitions, retention."""
