"""Reads scalars from TensorBoard's event files, and verifies their checksums."""

import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from popart.lab.checks import LabError, nearest

HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
"""Before a record: its length, and a checksum of it; after it: a checksum of the record."""

CHECKSUM_SHIFT = 0xA282EAD8
"""TFRecord files store checksums rotated by 15 bits and with this number added."""


def read_tag(path: Path, tag: str | None, most_bytes: int) -> np.ndarray[Any, Any]:
    """Read the values of a tag from an event file, or from all of a folder in the order of their names."""
    files = _files(path)
    total = sum(file.stat().st_size for file in files)
    if total > most_bytes:
        raise LabError(f"{path} has more than {most_bytes >> 20:,} MiB of events; give one of its files")
    found: dict[str, array[float]] = {}
    for file in files:
        for name, value in _scalars(file):
            found.setdefault(name, array("d")).append(value)
    if not found:
        raise LabError(f"{path} has no scalars")
    if tag is None and len(found) == 1:
        (tag,) = found
    tags = ", ".join(sorted(found)[:50])
    if tag is None:
        raise LabError(f"{path} has several tags; choose one with --tag: {tags}")
    if tag not in found:
        raise LabError(f"tag is {tag!r}, which is not in {path}{nearest(tag, found)} Tags are {tags}")
    return np.array(found[tag])


def _files(path: Path) -> list[Path]:
    """Return the event files of one run."""
    if not path.is_dir():
        if not path.is_file():
            raise LabError(f"{path} does not exist")
        return [path]
    folders = sorted({file.parent for file in path.rglob("*tfevents*") if file.is_file()})
    if not folders:
        raise LabError(f"{path} is a folder without TensorBoard event files")
    if len(folders) > 1:
        names = ", ".join(str(folder.relative_to(path)) for folder in folders[:20])
        raise LabError(f"{path} has event files of several runs; give the folder of one: {names}")
    return sorted(file for file in folders[0].glob("*tfevents*") if file.is_file())


def _scalars(path: Path) -> Iterator[tuple[str, float]]:
    from google.protobuf.message import DecodeError

    event_pb2 = _protobufs()
    for index, record in enumerate(_records(path)):
        try:
            event = event_pb2.Event.FromString(record)
        except DecodeError as error:
            raise LabError(f"{path} is not a TensorBoard event file: record {index} is no event") from error
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                yield value.tag, value.simple_value
            elif kind == "tensor" and _is_scalar(value):
                yield value.tag, _number(value.tensor)


def _protobufs() -> Any:
    try:
        from tensorboardX.proto import event_pb2
    except ImportError:
        raise LabError('TensorBoard files need tensorboardX: pip install "popart-learn[lab]"') from None
    return event_pb2


def _is_scalar(value: Any) -> bool:
    plugin = value.metadata.plugin_data.plugin_name
    return plugin in ("", "scalars") and not value.tensor.tensor_shape.dim and value.tensor.dtype in (1, 2)


def _number(tensor: Any) -> float:
    """Return a scalar of TensorFlow 2: float32 (type 1) or float64 (type 2), as a number or as bytes."""
    if tensor.tensor_content:
        return float(np.frombuffer(tensor.tensor_content, "<f4" if tensor.dtype == 1 else "<f8")[0])
    return float((tensor.float_val if tensor.dtype == 1 else tensor.double_val)[0])


def _records(path: Path) -> Iterator[bytes]:
    """Yield the records of a TFRecord file, each of which has a length and two checksums."""
    with path.open("rb") as file:
        left, index = path.stat().st_size, 0
        while header := file.read(HEADER.size):
            left -= len(header)
            _check_complete(path, index, len(header) == HEADER.size)
            length, checksum = HEADER.unpack(header)
            _check_sum(path, index, header[:8], checksum)
            _check_complete(path, index, length + FOOTER.size <= left)
            record = file.read(length)
            _check_sum(path, index, record, *FOOTER.unpack(file.read(FOOTER.size)))
            yield record
            left, index = left - length - FOOTER.size, index + 1


def _check_complete(path: Path, index: int, complete: bool) -> None:
    if not complete:
        raise LabError(f"{path} ends within record {index}: it is truncated, or still being written")


def _check_sum(path: Path, index: int, content: bytes, checksum: int) -> None:
    from tensorboardX.crc32c import crc32c

    crc = crc32c(content)
    if ((crc >> 15 | crc << 17) + CHECKSUM_SHIFT) & 0xFFFFFFFF != checksum:
        raise LabError(
            f"{path} is damaged, or not a TensorBoard event file: record {index} fails its checksum"
        )
