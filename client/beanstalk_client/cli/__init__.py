"""The command `beanstalk`: inspects and changes a running server, from a terminal or a script."""
