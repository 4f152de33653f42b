"""The program that runs tasks: `beanstalk-worker app:tasks`."""
