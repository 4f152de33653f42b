"""The engine that stores the journal of a cluster: its interface, and engines in Redis or Valkey and PostgreSQL."""
