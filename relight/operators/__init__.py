"""Commands of operators to runs and rollouts, from the command line, over HTTP and through Temporal."""
