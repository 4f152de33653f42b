"""The files of beanstalkd: what they look like, how they are taken over, and how jobs are exported to them."""
