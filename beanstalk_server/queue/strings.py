"""What the server uses of `librt.strings`, in Python, for where that library is missing."""

from __future__ import annotations


class BytesWriter:
    """Bytes to which more are appended."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def append(self, byte: int, /) -> None:
        self._bytes.append(byte)

    def write(self, data: bytes, /) -> None:
        self._bytes += data

    def getvalue(self) -> bytes:
        """All that has been written, in one piece."""
        return bytes(self._bytes)

    def truncate(self, size: int, /) -> None:
        """Forget what is behind this many bytes."""
        del self._bytes[size:]

    def __len__(self) -> int:
        return len(self._bytes)
