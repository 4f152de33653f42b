"""The units of time: every moment and every duration is a number of nanoseconds."""

from __future__ import annotations

from typing import Final

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000

GREATEST_SHORT: Final = (1 << 62) - 1
"""The greatest number that compiled code keeps without an object; with a greater one, each comparison is a call."""

FOREVER: Final = -1
"""The timeout of a reserve that waits until there is a job."""
