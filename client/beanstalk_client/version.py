"""The version of the client, which is that of the server it comes with."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.2.0"
