"""Conversations held with this server and with beanstalkd, compared byte by byte."""
