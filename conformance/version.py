"""The version of the suite, which is that of the server it comes with."""

from typing import Final

VERSION: Final = "0.2.0"
