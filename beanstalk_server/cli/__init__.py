"""The command line: starts the server, and runs the tools for its binlog."""
