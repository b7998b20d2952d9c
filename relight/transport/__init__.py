"""HTTP and sockets, for the connections between processes."""
