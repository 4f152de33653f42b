"""The program that runs tasks: `python -m beanstalk_client.worker app:tasks`."""
