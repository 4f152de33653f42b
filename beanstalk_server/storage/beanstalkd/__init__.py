"""The files that beanstalkd writes: read at a takeover, written by an export."""
