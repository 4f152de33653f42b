"""Compares this server with beanstalkd, byte by byte: conversations with servers that are started, and fuzzing."""
