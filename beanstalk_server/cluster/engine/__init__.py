"""What keeps the journal of a cluster: the interface, and Redis or Valkey behind it."""
