"""What is typed in a shell: the server, and the tools for its binlog."""
