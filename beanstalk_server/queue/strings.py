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


def write_i32_le(writer: BytesWriter, number: int, /) -> None:
    writer.write(number.to_bytes(4, "little", signed=True))


def write_i64_le(writer: BytesWriter, number: int, /) -> None:
    writer.write(number.to_bytes(8, "little", signed=True))


def read_i32_le(data: bytes, index: int, /) -> int:
    return int.from_bytes(data[index : index + 4], "little", signed=True)


def read_i64_le(data: bytes, index: int, /) -> int:
    return int.from_bytes(data[index : index + 8], "little", signed=True)
