"""beanstalkd's files: their format, a reader, a writer, the takeover of their jobs, and the export of jobs to them."""
