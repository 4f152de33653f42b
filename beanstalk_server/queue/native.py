"""What the compiler treats as native: its integers, its attributes of classes, and `librt`, the library beside it.

Compiled code calls the functions of `librt` directly, and its integers have 64 or 32 bits and are no objects. Where
Python interprets the modules, an integer is an `int`, and `librt` may be missing, as with PyPy: then strings.py has the
same functions. This module stays interpreted: compiled, it would have nothing but what is for the type checker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from librt.strings import BytesWriter as BytesWriter
    from librt.strings import read_i32_le as read_i32_le
    from librt.strings import read_i64_le as read_i64_le
    from librt.strings import write_i32_le as write_i32_le
    from librt.strings import write_i64_le as write_i64_le
    from mypy_extensions import i32 as i32
    from mypy_extensions import i64 as i64
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    try:
        from librt.strings import BytesWriter as BytesWriter
        from librt.strings import read_i32_le as read_i32_le
        from librt.strings import read_i64_le as read_i64_le
        from librt.strings import write_i32_le as write_i32_le
        from librt.strings import write_i64_le as write_i64_le
    except ImportError:
        from beanstalk_server.queue.strings import BytesWriter as BytesWriter
        from beanstalk_server.queue.strings import read_i32_le as read_i32_le
        from beanstalk_server.queue.strings import read_i64_le as read_i64_le
        from beanstalk_server.queue.strings import write_i32_le as write_i32_le
        from beanstalk_server.queue.strings import write_i64_le as write_i64_le

    i32 = i64 = int

    def mypyc_attr(**_: Any) -> Any:
        return lambda cls: cls
