"""Conversations that show what a server of the beanstalk protocol answers: the program beanstalk-conformance.

The modules here, and conversations/, are a distribution of its own (pyproject.toml): they import nothing but each
other and the standard library. compare/ is not part of it.
"""
