"""Measures this server and its peers on the same work, in turn, in one run. `python -m bench --help`."""
