"""Whether HTTP can be spoken: it needs a library, which only servers with a listener for it have any use for.

Must never import that library: it says whether it is there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Final

from beanstalk_server.settings.config import ListenerConfig

NO_LIBRARY: Final = "needs h11, which is not installed: pip install '.[http]' in a clone of beanstalk-server"


def http_mistakes(listeners: Iterable[ListenerConfig]) -> list[str]:
    """What keeps these listeners from being served: one line for each that speaks HTTP, if the library is missing."""
    spoken = [each for each in listeners if each.is_http]
    if not spoken or importlib.util.find_spec("h11") is not None:
        return []
    return [f"HTTP at {each.address}: {NO_LIBRARY}" for each in spoken]
