"""What an operator reads over HTTP."""
