"""The versions: of the package, and of the protocol that it speaks.

Must import nothing from the package when it is imported: the build reads it before the package exists.
"""

from typing import Final

VERSION: Final = "0.2.0"
"""The version of the package, which is defined nowhere else."""

PROTOCOL: Final = "1.13"
"""The version of beanstalkd whose protocol this server speaks."""

PROTOCOLS: Final = ("1.12", PROTOCOL)
"""The versions of beanstalkd that it can answer as, where they differ."""


def full_version() -> str:
    """This server's version, and whether its hot modules are compiled: "0.2.0 (compiled)" or "0.2.0 (pure Python)"."""
    from beanstalk_server.queue import ring  # the build reads this file before this module exists

    return f"{VERSION} ({'pure Python' if ring.__file__.endswith('.py') else 'compiled'})"
