"""What operators do to runs and rollouts, from whichever side they come."""
