"""Child processes: tied to their parent, logged to a file, ended with all that they started."""
