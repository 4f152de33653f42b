"""Samples of a server for `beanstalk top` and the console. Must not import either of them, nor another package."""
