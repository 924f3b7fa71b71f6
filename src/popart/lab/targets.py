"""Reads streams of targets from CSV, NPY and TensorBoard files. Errors are one line and say what to do."""

import csv
import io
import itertools
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from popart.lab.checks import LabError, nearest
from popart.lab.events import read_tag

MOST_BYTES = 2**30
"""Largest file that is read."""

MOST_CELL = 2**17
"""Longest cell of a CSV file, in characters; a file with a longer one is not a table of numbers."""

LOOKED_AT = 1_000
"""Number of rows that are read to find the columns with numbers."""

NPY, ZIP = b"\x93NUMPY", b"PK\x03\x04"


class Stream(NamedTuple):
    """Targets in the order of time, and where episodes end if a column says so."""

    targets: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any] | None = None


def read_targets(path: Path, column: str | None, tag: str | None, ends: str | None) -> Stream:
    """Read a file, or standard input for `-`; its content says of which kind it is."""
    try:
        if path.is_dir() or "tfevents" in path.name:
            _refuse(path, "TensorBoard logs have no columns", column=column, ends=ends)
            return Stream(read_tag(path, tag, MOST_BYTES))
        return _read_table(path, column, tag, ends)
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_table(path: Path, column: str | None, tag: str | None, ends: str | None) -> Stream:
    with _opened(path) as file:
        start = file.read(len(NPY))
        file.seek(0)
        _refuse(path, "it is not a TensorBoard log", tag=tag)
        if start == NPY:
            _refuse(path, "NPY files have no columns", column=column, ends=ends)
            return Stream(_read_npy(path, file))
        if start.startswith(ZIP):
            raise LabError(f"{path} is an archive; extract it, and save an array of NumPy with numpy.save")
        return _read_csv(path, file, column, ends)


def _refuse(path: Path, why: str, **options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise LabError(f"{name} is {value!r}, but {path} takes none: {why}")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of a bounded size. Standard input and pipes, which cannot be read twice, are read first."""
    if str(path) == "-":
        yield _bounded(path, sys.stdin.buffer)
        return
    with path.open("rb") as file:
        if not path.is_file():
            yield _bounded(path, file)
            return
        check_size(path, path.stat().st_size, MOST_BYTES)
        yield file


def _bounded(path: Path, file: IO[bytes]) -> io.BytesIO:
    content = file.read(MOST_BYTES + 1)
    check_size(path, len(content), MOST_BYTES)
    return io.BytesIO(content)


def check_size(path: Path, size: int, most: int) -> None:
    """Raise for a file that is empty or too large."""
    if size == 0:
        raise LabError(f"{path} is empty")
    if size > most:
        raise LabError(f"{path} has more than {most >> 20:,} MiB; give a part of it")


def _read_npy(path: Path, file: IO[bytes]) -> np.ndarray[Any, Any]:
    try:
        found = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise LabError(f"{path} is not a NPY file of numbers: {_first_line(error)}") from error
    if found.dtype.kind not in "biuf":
        raise LabError(f"{path} has elements of type {found.dtype}; they must be real numbers")
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _read_csv(path: Path, file: IO[bytes], column: str | None, ends: str | None) -> Stream:
    try:
        table = _Table(path, file)
        place = table.place("column", table.only_numbers() if column is None else column)
        other = None if ends is None else table.place("ends", ends)
        return table.read(place, other)
    except UnicodeDecodeError as error:
        raise LabError(f"{path} is neither text nor a NPY or TensorBoard file") from error
    except csv.Error as error:
        raise LabError(f"{path} is not a CSV file: {error}") from error


class _Table:
    """A CSV file, read row by row; cells are separated by commas, semicolons, tabs or spaces."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        first = next(self._rows(), None)
        if first is None:
            raise LabError(f"{path} has no rows")
        self._has_header = any(cell and number(cell) is None for cell in first)
        self._names = first if self._has_header else [str(i) for i in range(len(first))]

    def _rows(self) -> Iterator[list[str]]:
        """Yield the cells of each row that has any, from the first."""
        self._file.seek(0)
        lines = (line for line in self._text() if line.strip() and not line.startswith("#"))
        first = next(lines, "")
        delimiter = max(",;\t", key=first.count)
        delimiter = delimiter if delimiter in first else " "
        csv.field_size_limit(MOST_CELL)
        rows = csv.reader(itertools.chain([first], lines), delimiter=delimiter, skipinitialspace=True)
        yield from ([cell.strip() for cell in row] for row in rows if row)

    def _text(self) -> Iterator[str]:
        for number_of, line in enumerate(self._file, 1):
            if len(line) > 2**20:
                raise LabError(f"{self._path} has a line {number_of} of more than 1 MiB; it is not a table")
            yield line.decode("utf-8-sig" if number_of == 1 else "utf-8")

    def _body(self) -> Iterator[list[str]]:
        return itertools.islice(self._rows(), int(self._has_header), None)

    def _numeric(self) -> list[str]:
        """Return the names of columns with numbers, and no other text, in the first rows."""
        rows = list(itertools.islice(self._body(), LOOKED_AT))
        columns = dict(zip(self._names, itertools.zip_longest(*rows, fillvalue=""), strict=False))
        return [
            name
            for name, cells in columns.items()
            if any(cells) and all(not cell or number(cell) is not None for cell in cells)
        ]

    def only_numbers(self) -> str:
        """Return the only column with numbers."""
        names = self._numeric()
        if len(names) == 1:
            return names[0]
        if not names:
            raise LabError(
                f"{self._path} has no column of numbers; columns are {', '.join(self._names[:20])}"
            )
        raise LabError(f"{self._path} has several columns; choose one with --column: {', '.join(names[:50])}")

    def place(self, option: str, name: str) -> int:
        if name not in self._names:
            raise LabError(
                f"{option} is {name!r}, which is not in {self._path}{nearest(name, self._names)} "
                f"Columns of numbers are {', '.join(self._numeric()[:50])}"
            )
        return self._names.index(name)

    def read(self, place: int, ends: int | None) -> Stream:
        """Read one or two columns; rows without a target are left out."""
        found, ended = array("d"), array("d")
        for row_number, row in enumerate(self._body(), 1 + self._has_header):
            cell = row[place] if place < len(row) else ""
            if cell:
                found.append(self._number(cell, row_number, place))
                if ends is not None:
                    ended.append(self._number(row[ends] if ends < len(row) else "", row_number, ends))
        if not found:
            raise LabError(f"{self._path} has no numbers in column {self._names[place]!r}")
        return Stream(np.array(found), None if ends is None else np.array(ended))

    def _number(self, cell: str, row: int, place: int) -> float:
        value = number(cell)
        if value is None:
            raise LabError(
                f"{self._path} has {cell!r} in row {row}, column {self._names[place]!r}: not a number"
            )
        return value


def number(cell: str) -> float | None:
    """Return a cell as a number; true and false are 1 and 0."""
    try:
        return float(cell)
    except ValueError:
        return {"true": 1.0, "false": 0.0}.get(cell.lower())
