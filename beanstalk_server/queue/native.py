"""What the compiler is told about classes, and Python ignores: mypy_extensions, without needing it at run time.

It stays interpreted: compiled, it would have nothing but what is for the type checker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_: Any) -> Any:
        return lambda cls: cls
