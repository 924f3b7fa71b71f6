"""Files of a run folder: tables as CSV, and writes that replace a file as a whole or not at all.

A run folder may come from a stranger. Only data of bounded size is read: no link is followed, a pipe blocks
nothing, and control characters, which a terminal would obey, are removed.
"""

import csv
import io
import os
import re
import secrets
import stat
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil
from msgspec import Struct
from msgspec.structs import fields

from popart.lab.checks import LabError
from popart.lab.schemas import check

MOST_BYTES = 2**26
"""Largest file that is read, in bytes. Ten thousand rows of metrics have 2 MB."""

CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""Characters that control a terminal or the direction of text; not tabs and line ends."""

REPAIR = "restore it from a copy, or give another --out to start again"

temporaries: set[Path] = set()
"""Temporary files of this process, which are removed when it is interrupted."""

writers: set[subprocess.Popen[bytes]] = set()
"""Processes that write temporary files, and would write them again if they were not ended first."""

beginning = threading.Lock()
"""Held while a file or a writer is created; the thread that removes them takes it and keeps it."""


def printable(content: Any) -> Any:
    """Return text, or the content of a JSON file, without control characters."""
    if isinstance(content, str):
        return CONTROLS.sub("", content)
    if isinstance(content, list):
        return [printable(each) for each in content]
    if isinstance(content, dict):
        return {printable(name): printable(each) for name, each in content.items()}
    return content


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a regular file of bounded size; no link is followed, and a pipe is refused at once."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if path.is_symlink():
            raise LabError(f"{path} is a symbolic link, which is not followed; put the file in its place")
        with open(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise LabError(f"{path} is not a regular file; {REPAIR}")
            content = file.read(most + 1)
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > most:
        raise LabError(f"{path} has more than {most >> 20} MiB, which is too much to be read; {REPAIR}")
    return content


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yield a new empty file beside `path`, and remove it at the end, unless it was moved."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    temporaries.add(temporary)  # before it exists, so that no interruption can come between
    try:
        with beginning:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        temporaries.discard(temporary)


def is_abandoned(temporary: Path) -> bool:
    """Return whether the process that wrote a temporary file is gone."""
    process = temporary.name.split(".")[-3]
    return not (process.isdecimal() and psutil.pid_exists(int(process)))


@contextmanager
def writer(command: Sequence[str], said: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that writes a temporary file from its input; it ends with the block."""
    with beginning:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=said, start_new_session=True)
        writers.add(process)
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
                with suppress(OSError):  # unread data
                    if process.stdin:
                        process.stdin.close()
    finally:
        writers.discard(process)


def remove_temporaries() -> None:
    """Remove the temporary files of this process, which is about to end."""
    beginning.acquire(timeout=1)  # never released: nothing may be created any more
    for process in tuple(writers):
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
    for path in tuple(temporaries):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole. If that fails, the old file stays and no temporary file is left behind."""
    try:
        with temporary_file(path) as temporary:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
    except OSError as error:
        raise LabError(
            f"{path} cannot be written: {error.strerror}. The files that were there are unchanged. Run the "
            "same command again to resume."
        ) from error


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same keys as CSV, with all digits of numbers; None becomes an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in rows)
    write_atomically(path, text.getvalue().encode())


def read_table(path: Path, schema: type[Struct] | None = None, growing: bool = False) -> list[dict[str, str]]:
    """Read the rows of a CSV file.

    Args:
        path: the file.
        schema: columns that it must have, with the types of their cells; an empty cell is None.
        growing: whether a process may have been stopped while it wrote the last row, which is left out then.
    """
    try:
        text = read_file(path).decode()
    except UnicodeDecodeError as error:
        raise _damaged(path, f"it is not UTF-8 at byte {error.start}") from error
    if growing:
        text = text[: text.rfind("\n") + 1]
    try:
        header, *lines = list(csv.reader(io.StringIO(text), strict=True)) or [[]]
    except csv.Error as error:
        raise _damaged(path, str(error)) from error
    if growing and not header:
        return []
    header = printable(header)
    if not header or len(set(header)) < len(header):
        raise _damaged(path, "a name of a column is there twice" if header else "it is empty")
    for number, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise _damaged(path, f"row {number} has {len(line)} cells, not {len(header)}")
    rows = [dict(zip(header, printable(line), strict=True)) for line in lines]
    if schema:
        _check_rows(path, header, rows, schema)
    return rows


def _check_rows(
    path: Path, header: Sequence[str], rows: Sequence[Mapping[str, str]], schema: type[Struct]
) -> None:
    missing = [x.encode_name for x in fields(schema) if x.required and x.encode_name not in header]
    if missing:
        raise _damaged(path, f"it has no column {missing[0]!r}")
    for number, row in enumerate(rows, 2):
        cells = {name: cell or None for name, cell in row.items()}
        check(cells, schema, f"{path}, row {number},", strict=False)


def _damaged(path: Path, reason: str) -> LabError:
    return LabError(f"{path} is damaged: {reason}; {REPAIR}")


def check_no_links(folder: Path) -> None:
    """Refuse a run folder in which a file or folder is a link: nothing is written or deleted elsewhere."""
    places = (folder, folder / "checkpoints", folder / "tensorboard")
    for place in places:
        if place != folder and place.is_symlink():
            raise _link(place)
        if place.is_dir():
            for path in place.iterdir():
                if path.is_symlink():
                    raise _link(path)


def _link(path: Path) -> LabError:
    return LabError(
        f"{path} is a symbolic link. Nothing is written or deleted through a link inside a run folder: "
        "move it away, or give another --out"
    )
