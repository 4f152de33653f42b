"""How the core meets the system: sockets, connections, the event loop, start and stop."""
