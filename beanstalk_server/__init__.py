"""A job queue with delays that speaks the beanstalk protocol.

The command line is `beanstalk-server`. From Python, the same server runs inside a program or a test:

    async with Server(Config(port=0)) as server:
        host, port = server.address
"""

from typing import TYPE_CHECKING

from beanstalk_server.config import Config, ConfigError, ListenerConfig, TubeConfig, UserConfig
from beanstalk_server.version import VERSION

if TYPE_CHECKING:
    from beanstalk_server.server.server import Server
    from beanstalk_server.server.start_error import StartError

__version__ = VERSION

__all__ = ["Config", "ConfigError", "ListenerConfig", "Server", "StartError", "TubeConfig", "UserConfig", "__version__"]


def __getattr__(name: str) -> object:
    """Import the server when it is asked for: whoever wants only a tool or a part need not load the event loop."""
    if name == "Server":
        from beanstalk_server.server.server import Server

        return Server
    if name == "StartError":
        from beanstalk_server.server.start_error import StartError

        return StartError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
