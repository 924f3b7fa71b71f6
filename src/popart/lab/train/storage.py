"""Checkpoints on disk: written in the background, each as a whole or not at all."""

import json
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from popart.lab.checks import LabError

logging.getLogger("absl").setLevel(logging.CRITICAL)  # errors are raised as exceptions, too

FORMAT = 2
"""Of the whole checkpoint. The first release wrote 1; its policies can still be read."""

READABLE = (1, 2)


class ReplacedError(LabError):
    """A checkpoint was replaced by the run that writes it, while it was read."""

    def __init__(self, where: Path) -> None:
        super().__init__(f"{where} was replaced while it was read; try again")


class Checkpoints:
    """The newest checkpoint of a run; the one before is removed when a new one is complete.

    Readers must say so with `read_only`: to a writer, a checkpoint that another process is just writing looks
    like the remains of a killed one.
    """

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self._folder = folder.absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if read_only else 1, cleanup_tmp_directories=not read_only, read_only=read_only
        )
        try:
            self._manager = ocp.CheckpointManager(self._folder, options=options)
        except (FileNotFoundError, NotADirectoryError) as error:  # it was listed a moment ago
            if not read_only:
                raise
            raise ReplacedError(self._folder) from error
        if read_only and self.newest != self._on_disk():  # it changed while it was listed
            self.close()
            raise ReplacedError(self._folder)

    @property
    def newest(self) -> int | None:
        return self._manager.latest_step()

    def save(self, step: int, notes: dict[str, Any], **arrays: Any) -> None:
        """Copy arrays now and write them in the background. Notes are JSON."""
        if step == self.newest:
            return
        parts = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
        notes = {**notes, "format": FORMAT}
        whole = ocp.args.Composite(**parts, notes=ocp.args.JsonSave(notes))
        with self._writing():
            self._manager.save(step, args=whole, force=True)

    def notes(self, formats: Collection[int] = (FORMAT,)) -> dict[str, Any]:
        """Load the notes of the newest checkpoint, which must have one of these formats."""
        notes = self._restore("notes", ocp.args.JsonRestore())
        if not isinstance(notes, dict) or notes.get("format") not in formats:
            there = notes.get("format") if isinstance(notes, dict) else None
            raise LabError(
                f"{self._where} is a checkpoint of another version (format {there!r}, not {FORMAT}); "
                "resume it with the version of popart that wrote it, or give another --out"
            )
        return notes

    def arrays(self, name: str, like: Any) -> Any:
        """Load arrays of the newest checkpoint by name. They must have the shapes and types of `like`."""
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), like)
        return self._restore(name, ocp.args.StandardRestore(abstract))

    def _restore(self, name: str, args: Any) -> Any:
        try:
            return self._manager.restore(self.newest, args=ocp.args.Composite(**{name: args}))[name]
        except (ValueError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            if self._on_disk() != self.newest:
                raise ReplacedError(self._where) from error
            raise LabError(
                f"{self._where} is damaged or was written by another version ({_reason(error)}); "
                "move it away to start again, or give another --out"
            ) from error

    @property
    def _where(self) -> Path:
        return self._folder / str(self.newest)

    def _on_disk(self) -> int | None:
        """Return the newest step on disk, which another process may have written."""
        return max((int(path.name) for path in self._folder.iterdir() if path.name.isdigit()), default=None)

    def wait(self) -> None:
        """Wait until everything is written."""
        with self._writing():
            self._manager.wait_until_finished()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of writing into one message; those in the background are raised by the next call."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            raise LabError(
                f"a checkpoint could not be written to {self._folder} ({_reason(error)}); "
                "the one before it is complete. Run the same command again to resume from it"
            ) from error

    def close(self) -> None:
        with self._writing():
            self._manager.close()


def _reason(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
