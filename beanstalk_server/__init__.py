"""A job queue with delays that speaks the beanstalk protocol.

The command line is `beanstalk-server`. From Python, the same server runs inside a program or a test:

    async with Server(Config(port=0)) as server:
        host, port = server.address
"""

from beanstalk_server.config import Config, ConfigError
from beanstalk_server.server.server import Server
from beanstalk_server.server.start_error import StartError
from beanstalk_server.version import VERSION

__version__ = VERSION

__all__ = ["Config", "ConfigError", "Server", "StartError", "__version__"]
