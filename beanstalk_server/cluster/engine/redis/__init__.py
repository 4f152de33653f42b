"""An engine in Redis or Valkey."""
