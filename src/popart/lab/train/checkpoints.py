"""Checkpoints: written in the background, each as a whole or not at all; the last and the best are kept."""

import json
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from popart.lab.checks import LabError

FORMAT = 1
"""Changes when older checkpoints can no longer be read."""


class Checkpoints:
    """The newest checkpoint of a run: when the next one is whole, the one before is removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        options = ocp.CheckpointManagerOptions(max_to_keep=1, cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    @property
    def newest(self) -> int | None:
        return self._manager.latest_step()

    def save(self, step: int, notes: dict[str, Any], **arrays: Any) -> None:
        """Take a copy now, and write it while other work goes on. Notes are as JSON has them."""
        parts = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
        notes = {**notes, "format": FORMAT}
        self._manager.save(step, args=ocp.args.Composite(**parts, notes=ocp.args.JsonSave(notes)), force=True)

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
        """Of the newest, what was saved under a name, which has the shape of `like`."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        return self._restore(name, ocp.args.StandardRestore(abstract))

    def _restore(self, name: str, args: Any) -> Any:
        try:
            return self._manager.restore(self.newest, args=ocp.args.Composite(**{name: args}))[name]
        except (ValueError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            reason = str(error).strip().split("\n")[0][:200]
            raise LabError(
                f"{self._where} is damaged or was written by another version ({reason}); "
                "move it away to begin anew, or give another --out"
            ) from error

    @property
    def _where(self) -> Path:
        return self._folder / str(self.newest)

    def wait(self) -> None:
        """Until all is written."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()
