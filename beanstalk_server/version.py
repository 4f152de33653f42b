"""Which version this is: of the package, and of the protocol that it speaks.

Must import nothing from the package: the build reads it before there is one.
"""

from typing import Final

VERSION: Final = "0.2.0"
"""The version of the distribution, in its only place."""

PROTOCOL: Final = "1.13"
"""The version of beanstalkd whose protocol this server speaks."""

PROTOCOLS: Final = ("1.12", PROTOCOL)
"""The versions that it can answer as, where they differ."""


def version_in_stats(protocol: str = PROTOCOL) -> str:
    """The version that `stats` tells: the protocol's first, then this server's as build metadata.

    A client that wants to know what a server can do compares this with beanstalkd's versions, as a semantic version
    (semver.org) or number by number; beanstalkd itself puts what is no release behind a plus sign too.

    Args:
        protocol: the version of beanstalkd that the server answers as, such as "1.13".
    """
    return f"{protocol}.0+beanstalk-server.{VERSION}"


def full_version() -> str:
    """This server's version, and whether its hot modules are compiled: "0.2.0 (compiled)" or "0.2.0 (pure Python)"."""
    from beanstalk_server.queue import ring  # the build reads this file before there are any modules

    return f"{VERSION} ({'pure Python' if ring.__file__.endswith('.py') else 'compiled'})"
