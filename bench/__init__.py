"""The same work done by this server and by beanstalkd, in turn, in one run. `python -m bench --help`."""
