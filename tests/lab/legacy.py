"""Checkpoints as earlier versions wrote them, with Orbax."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from popart.lab.train.storage import Checkpoints


def as_orbax(folder: Path, shapes: dict[str, Any], version: int) -> None:
    """Replace the checkpoints in a folder by those that Orbax would have written."""
    checkpoints = Checkpoints(folder)
    for checkpoint in checkpoints.all():
        names = zipfile.ZipFile(checkpoint.path).namelist()
        parts = {name: like for name, like in shapes.items() if any(x.startswith(name) for x in names)}
        content = checkpoints.load(parts)
        assert content is not None
        checkpoint.remove()
        saved = {name: ocp.args.StandardSave(tree) for name, tree in content.arrays.items()}
        notes = json.loads(json.dumps(content.notes | {"format": version}))
        whole = ocp.args.Composite(**saved, notes=ocp.args.JsonSave(notes))
        with ocp.CheckpointManager(folder.absolute()) as manager:
            manager.save(checkpoint.step, args=whole)
    assert np.all([path.is_dir() for path in folder.iterdir()])
