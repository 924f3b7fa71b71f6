"""Checkpoints of earlier versions: folders that Orbax wrote, without checksums."""

import logging
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from popart.lab.checks import LabError

logging.getLogger("absl").setLevel(logging.CRITICAL)  # errors are raised as exceptions, too
logging.getLogger("asyncio").setLevel(logging.CRITICAL)

READABLE = (1, 2)
"""Formats that can be read. The first release wrote format 1, of which only policies can be read."""


def read_notes(path: Path) -> dict[str, Any]:
    """Read the notes of a checkpoint."""
    notes = _restore(path, "notes", ocp.args.JsonRestore())
    if not isinstance(notes, dict) or notes.get("format") not in READABLE:
        there = notes.get("format") if isinstance(notes, dict) else None
        raise LabError(f"it has format {there!r}, not one of {READABLE}: another version of popart wrote it")
    return notes


def read_arrays(path: Path, name: str, like: Any) -> Any:
    """Read arrays of a checkpoint by name. They must have the shapes and types of `like`."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), like)
    return _restore(path, name, ocp.args.StandardRestore(abstract))


def _restore(path: Path, name: str, args: Any) -> Any:
    if not (path / name).is_dir():
        raise OSError(f"it has no part {name!r}")
    options = ocp.CheckpointManagerOptions(read_only=True)
    with ocp.CheckpointManager(path.parent.absolute(), options=options) as manager:
        return manager.restore(int(path.name), args=ocp.args.Composite(**{name: args}))[name]
