from recipes import follow  # noqa: F401
from serving import launch, launch_beanstalkd, loop_factory, open_path, run  # noqa: F401
