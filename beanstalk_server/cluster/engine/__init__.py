"""The engine that stores the journal of a cluster: its interface, and Redis or Valkey."""
