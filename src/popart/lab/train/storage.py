"""Checkpoints on disk: each is one file, which is renamed to its final name when it is complete and verified.

A checkpoint is a ZIP file of arrays (NPY) and of notes (JSON), such as `checkpoints/last/1234.npz`. Every
part has a checksum, which is verified when it was written and whenever it is read. The checkpoint before the
newest stays, and is used when the newest is damaged; one of more than a gigabyte is removed when the newer
one has been verified.
"""

import json
import os
import shutil
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np

from popart.lab.checks import LabError
from popart.lab.console import say
from popart.lab.files import printable, temporary_file
from popart.lab.schemas import AnyNotes, check

FORMAT = 3
"""Format of the whole checkpoint. 1 and 2 are folders of Orbax, without checksums."""

LARGE = 2**30
"""Size in bytes above which only the newest checkpoint is kept."""

NOTES = "notes.json"
MOST_NOTES = 2**26
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    MemoryError,
    LabError,
)
"""Exceptions that reading a damaged checkpoint can raise."""


class ReplacedError(LabError):
    """A checkpoint was replaced by the run that writes it, while it was read."""

    def __init__(self, where: Path) -> None:
        super().__init__(f"{where} was replaced while it was read; try again")


class Checkpoint(NamedTuple):
    """A checkpoint on disk: its file, or the folder of an earlier version."""

    path: Path
    step: int

    @property
    def is_legacy(self) -> bool:
        return self.path.suffix != ".npz"

    def notes(self, schema: type[msgspec.Struct] = AnyNotes) -> dict[str, Any]:
        """Read the notes, which must fit the schema."""
        if self.is_legacy:
            from popart.lab.train.legacy import read_notes

            notes = read_notes(self.path)
        else:
            with self._file() as file:
                notes = json.loads(_content(file, NOTES, MOST_NOTES))
            if not isinstance(notes, dict) or notes.get("format") != FORMAT:
                there = notes.get("format") if isinstance(notes, dict) else None
                raise LabError(f"it has format {there!r}, not {FORMAT}: another version of popart wrote it")
        check(notes, schema, f"{self.path}, {NOTES},")
        return printable(notes)

    def arrays(self, name: str, like: Any) -> Any:
        """Read a tree of arrays, which must have the shapes and types of `like`; None: only verify them."""
        if like is None:
            return self._verify(name)
        if self.is_legacy:
            from popart.lab.train.legacy import read_arrays

            return read_arrays(self.path, name, like)
        leaves, tree = jax.tree_util.tree_flatten_with_path(like)
        with self._file() as file:
            return tree.unflatten([_read_array(file, _member(name, path), leaf) for path, leaf in leaves])

    def _verify(self, name: str) -> None:
        """Compare the checksums of a part's arrays."""
        if self.is_legacy:
            return
        with self._file() as file:
            for part in file.infolist():
                if part.filename.startswith(name):
                    with file.open(part) as content:
                        while content.read(2**24):
                            pass

    def _file(self) -> zipfile.ZipFile:
        if self.path.is_symlink():
            raise OSError("it is a symbolic link")
        file = zipfile.ZipFile(self.path)
        if any(part.compress_type != zipfile.ZIP_STORED for part in file.infolist()):
            file.close()
            raise zipfile.BadZipFile("a part is compressed")
        return file

    def remove(self) -> None:
        if self.is_legacy:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)


class Checkpoints:
    """The newest checkpoints of a run in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[Checkpoint]:
        """Return the checkpoints on disk, the newest first."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [Checkpoint(self.folder / name, _step(name)) for name in names if _step(name) >= 0]
        return sorted(found, key=lambda each: (each.step, not each.is_legacy), reverse=True)

    @property
    def newest(self) -> int | None:
        return next((each.step for each in self.all()), None)

    def save(self, step: int, notes: Mapping[str, Any], **arrays: Any) -> None:
        """Write a checkpoint, verify it, and remove those that are no longer needed."""
        before = self.all()
        if before and before[0].step == step:
            return
        try:
            self.folder.parent.mkdir(exist_ok=True)  # and not the run folder, which may have been moved
            self.folder.mkdir(exist_ok=True)
            with temporary_file(self.folder / f"{step}.npz") as temporary:
                _write(temporary, {**notes, "format": FORMAT}, arrays)
                size = _verify(temporary)
                temporary.chmod(0o644)
                temporary.replace(self.folder / f"{step}.npz")
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            earlier = "the one before it is complete. Run the same command again to resume from it"
            none = "there is none before it. Run the same command again to start again"
            raise LabError(
                f"a checkpoint could not be written to {self.folder} ({_reason(error)}); "
                f"{earlier if before else none}"
            ) from error
        for old in before[0 if size > LARGE else 1 :]:
            old.remove()

    def load(self, parts: Mapping[str, Any], schema: type[msgspec.Struct] = AnyNotes) -> "Content | None":
        """Load notes and these parts from the newest checkpoint that is not damaged; None if there is none.

        Args:
            parts: shapes and types of the arrays to load, by name; None to verify them only.
            schema: of the notes.
        """
        found, reasons = self.all(), list[str]()
        for checkpoint in found:
            try:
                notes = checkpoint.notes(schema)
                arrays = {name: checkpoint.arrays(name, like) for name, like in parts.items()}
            except DAMAGE as error:
                if not checkpoint.path.exists():
                    raise ReplacedError(checkpoint.path) from error
                reasons.append(f"{checkpoint.path} is damaged, or of another version: {_reason(error)}")
                continue
            if reasons:
                say(f"{'; '.join(reasons)}. The one before it is used: {checkpoint.path}")
            return Content(checkpoint, notes, arrays)
        if found:
            raise LabError(
                f"{'; '.join(reasons)}. No other checkpoint is left: move {self.folder} away to start again, "
                "restore it from a copy, or give another --out"
            )
        return None


class Content(NamedTuple):
    """The loaded content of a checkpoint: its notes, and arrays by the names of parts."""

    checkpoint: Checkpoint
    notes: dict[str, Any]
    arrays: dict[str, Any]


def _step(name: str) -> int:
    """Return the step in the name of a checkpoint, -1 if it is not the name of one."""
    stem = name.removesuffix(".npz")
    return int(stem) if stem.isascii() and stem.isdigit() and len(stem) < 19 else -1


def _member(name: str, path: Any) -> str:
    return f"{name}{jax.tree_util.keystr(path)}.npy"


def _leaves(arrays: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    for name, tree in arrays.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            yield _member(name, path), np.asarray(leaf, order="C")


def _write(path: Path, notes: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    with path.open("wb") as raw:
        with zipfile.ZipFile(raw, "w") as file:
            file.writestr(NOTES, json.dumps(notes))
            for name, array in _leaves(arrays):
                with file.open(name, "w", force_zip64=True) as part:
                    np.lib.format.write_array(part, array, allow_pickle=False)
        raw.flush()
        os.fsync(raw.fileno())


def _verify(path: Path) -> int:
    """Read a file again, and compare all checksums; return its size."""
    with zipfile.ZipFile(path) as file:
        if damaged := file.testzip():
            raise OSError(f"{damaged} is not what was written")
    return path.stat().st_size


def _content(file: zipfile.ZipFile, name: str, most: int) -> bytes:
    if file.getinfo(name).file_size > most:
        raise ValueError(f"{name} is too large")
    return file.read(name)


def _read_array(file: zipfile.ZipFile, name: str, like: Any) -> np.ndarray:
    """Read an array and compare its checksum; its shape and type are compared before memory is allocated."""
    shape, dtype = tuple(like.shape), np.dtype(like.dtype)
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    with file.open(name) as part:
        version = np.lib.format.read_magic(part)
        if version != (1, 0):
            raise ValueError(f"{name} has the NPY version {version}")
        found = np.lib.format.read_array_header_1_0(part)
        if found != (shape, False, dtype):
            raise ValueError(f"{name} has shape {found[0]} and type {found[2]}, not {shape} and {dtype}")
        array = np.empty(shape, dtype)
        octets, done = array.reshape(-1).view(np.uint8), 0
        while done < size:
            chunk = part.read(min(size - done, 2**24))
            if not chunk:
                raise EOFError(f"{name} is truncated")
            octets[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
            done += len(chunk)
        if part.read(1):  # at the end, the checksum is compared
            raise ValueError(f"{name} is longer than its array")
    return array


def _reason(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0][:200]
    return getattr(error, "strerror", None) or text or type(error).__name__
