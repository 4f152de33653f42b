"""beanstalkd's files: their format, the takeover of their jobs, and the export of jobs to them."""
