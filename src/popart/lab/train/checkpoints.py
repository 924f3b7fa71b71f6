"""Checkpoints: written in the background, each as a whole or not at all; the last and the best are kept."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from popart.lab.checks import LabError

logging.getLogger("absl").setLevel(logging.CRITICAL)  # what goes wrong comes up as an exception, too

FORMAT = 1
"""Changes when older checkpoints can no longer be read."""


class ReplacedError(LabError):
    """By the run that writes it, while it was read."""

    def __init__(self, where: Path) -> None:
        super().__init__(f"{where} was replaced while it was read; try again")


class Checkpoints:
    """The newest checkpoint of a run: when the next one is whole, the one before is removed.

    Who only reads must say so: what is being written meanwhile looks like what a killed process left.
    """

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self._folder = folder.absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if read_only else 1, cleanup_tmp_directories=not read_only, read_only=read_only
        )
        try:
            self._manager = ocp.CheckpointManager(self._folder, options=options)
        except (FileNotFoundError, NotADirectoryError) as error:  # of one that was listed
            if not read_only:
                raise
            raise ReplacedError(self._folder) from error
        if read_only and self.newest != self._on_disk():  # a listing is not of one moment
            self.close()
            raise ReplacedError(self._folder)

    @property
    def newest(self) -> int | None:
        return self._manager.latest_step()

    def save(self, step: int, notes: dict[str, Any], **arrays: Any) -> None:
        """Take a copy now, and write it while other work goes on. Notes are as JSON has them."""
        if step == self.newest:
            return  # it is the same
        parts = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
        notes = {**notes, "format": FORMAT}
        whole = ocp.args.Composite(**parts, notes=ocp.args.JsonSave(notes))
        with self._writing():
            self._manager.save(step, args=whole, force=True)

    def notes(self) -> dict[str, Any]:
        """Of the newest, or an error that says what is wrong with it."""
        notes = self._restore("notes", ocp.args.JsonRestore())
        if not isinstance(notes, dict) or notes.get("format") != FORMAT:
            there = notes.get("format") if isinstance(notes, dict) else None
            raise LabError(
                f"{self._where} is a checkpoint of another version (format {there!r}, not {FORMAT}); "
                "go on with the version of popart that wrote it, or give another --out"
            )
        return notes

    def arrays(self, name: str, like: Any) -> Any:
        """Of the newest, what was saved under a name, which has the shapes and types of `like`."""
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
                "move it away to begin anew, or give another --out"
            ) from error

    @property
    def _where(self) -> Path:
        return self._folder / str(self.newest)

    def _on_disk(self) -> int | None:
        """The newest, which another process may have written; it then removes the one before."""
        return max((int(path.name) for path in self._folder.iterdir() if path.name.isdigit()), default=None)

    def wait(self) -> None:
        """Until all is written."""
        with self._writing():
            self._manager.wait_until_finished()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What went wrong in the background comes up when the next thing is asked for."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            raise LabError(
                f"a checkpoint could not be written to {self._folder} ({_reason(error)}); "
                "the one before it is whole, and the same command goes on from it"
            ) from error

    def close(self) -> None:
        with self._writing():
            self._manager.close()


def _reason(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
