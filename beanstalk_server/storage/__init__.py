"""Keeps jobs in files, so that they survive the process. Knows no clients; only `binlog.py` knows an event loop."""
