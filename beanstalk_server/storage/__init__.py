"""What survives the process: jobs in files. Knows no clients and no commands; only `binlog.py` knows an event loop."""
