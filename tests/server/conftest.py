from serving import launch, launch_beanstalkd, loop_factory, open_path, run  # noqa: F401
