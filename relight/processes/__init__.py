"""Child processes: killed with their parent and with all that they started, logged to a file."""
