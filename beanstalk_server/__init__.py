"""A job queue with delays that speaks the beanstalk protocol.

The command line is `beanstalk-server`. From Python, the same server runs inside a program or a test:

    async with Server(Config(port=0)) as server:
        host, port = server.address
"""

from importlib import import_module
from typing import TYPE_CHECKING

from beanstalk_server.version import VERSION

if TYPE_CHECKING:
    from beanstalk_server.server.server import Server
    from beanstalk_server.server.start_error import StartError
    from beanstalk_server.servers import server_of
    from beanstalk_server.settings.declaration import ConfigError
    from beanstalk_server.settings.options import Config
    from beanstalk_server.settings.sections import ListenerConfig, TubeConfig, UserConfig

__version__ = VERSION

__all__ = [
    "Config",
    "ConfigError",
    "ListenerConfig",
    "Server",
    "StartError",
    "TubeConfig",
    "UserConfig",
    "__version__",
    "server_of",
]

_ELSEWHERE = {"Server": "server.server", "StartError": "server.start_error", "server_of": "servers"}


def __getattr__(name: str) -> object:
    """Import what is asked for: a program that uses only a tool or a part does not load the event loop, and the command
    line blocks signals before it loads anything."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'settings.options')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
