"""The client for Python programs, `beanstalk_client`, by its older name.

    from beanstalk_server.client import Client, TooLateError

It is a distribution of its own (client/, docs/client.md), because a program that puts jobs needs no server: import
`beanstalk_client` there. The server never imports this module.
"""

from __future__ import annotations

from beanstalk_client import *  # noqa: F403 all that is public there
from beanstalk_client import __all__  # noqa: F401
