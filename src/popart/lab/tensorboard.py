"""Writes scalars as TensorBoard's event files.

Packages that write these files import PyTorch, which takes longer than everything else at the start. The
format is simple: records of Protocol Buffers, each with its length and two checksums.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

VERSION = b"brain.Event:2"
START = 1
"""The status of a session that begins: later steps of earlier sessions are replaced."""


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = _table()


def crc32c(content: bytes) -> int:
    """Return the CRC-32C of bytes (Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _checksum(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _number(value: int) -> bytes:
    """Return a whole number, seven bits in each byte, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def _field(number: int, content: bytes) -> bytes:
    """Return a field of bytes: text, or a message."""
    return _number(number << 3 | 2) + _number(len(content)) + content


def _scalar(tag: str, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _field(1, _field(1, tag.encode()) + _number(2 << 3 | 5) + packed)


class Events:
    """An event file in a folder. A step's earlier events beyond `step` are replaced by the new ones."""

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("ab")
        self._write(0, _field(3, VERSION))
        self._write(step, _field(7, _number(1 << 3) + _number(START)))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars by their tags."""
        self._write(step, _field(5, b"".join(_scalar(tag, value) for tag, value in scalars.items())))

    def _write(self, step: int, content: bytes) -> None:
        when = _number(1 << 3 | 1) + struct.pack("<d", time.time())
        event = when + _number(2 << 3) + _number(step) + content
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))
        self._file.flush()

    def close(self) -> None:
        self._file.close()
