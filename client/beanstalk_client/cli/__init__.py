"""What an operator does with a server that runs, from a terminal or a script: the command `beanstalk`."""
