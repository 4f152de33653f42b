"""One connection that carries many clients: between nodes, and between the processes of one server."""
