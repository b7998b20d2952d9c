"""What every client and worker of Temporal shares: connecting, heartbeats, ending."""
