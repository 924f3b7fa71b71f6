"""Agents of runs, finished or not."""

from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from popart.lab.checks import LabError
from popart.lab.dqn import learner
from popart.lab.dqn.networks import Network
from popart.lab.runs import read_manifest
from popart.lab.train import Train
from popart.lab.train.checkpoints import Checkpoints, ReplacedError
from popart.lab.train.playing import Policy

Which = Literal["best", "last"]

TRIES = 20
"""A run that goes on may replace its checkpoint while it is read: then the next one is."""


class Trained(NamedTuple):
    """An agent, what it was trained with, and for how many frames."""

    settings: Train
    folder: Path
    which: Which
    frames: int
    step: int

    def policy(self, network: Network) -> Policy:
        start = jax.eval_shape(partial(learner.init, self.settings.learning, network), jax.random.key(0))
        with closing(Checkpoints(self.folder, read_only=True)) as checkpoints:
            if checkpoints.newest != self.step:  # that would be another agent
                raise ReplacedError(self.folder / str(self.step))
            return checkpoints.arrays("policy", Policy(start.params, start.statistics))


def load(folder: Path, which: Which) -> Trained:
    """The best agent of a run, or the last one; if there was no evaluation, that is the best."""
    manifest: dict[str, Any] = read_manifest(folder)
    if manifest["experiment"] != "train":
        raise LabError(f"{folder} is a run of {manifest['experiment']!r}, not of 'train'")
    names = Train.__dataclass_fields__
    unknown = [name for name in manifest["settings"] if name not in names]
    if unknown:
        raise LabError(f"{folder} was written by another version: this one has no setting {unknown[0]!r}")
    try:
        settings = Train(**manifest["settings"], out=folder)
    except ValueError as error:
        raise LabError(f"{folder} has a manifest that does not make sense: {error}") from error
    for _ in range(TRIES):
        with suppress(ReplacedError):
            return _newest(settings, folder, which)
    raise ReplacedError(folder / "checkpoints")


def _newest(settings: Train, folder: Path, which: Which) -> Trained:
    for name in dict.fromkeys((which, "last")):
        path = folder / "checkpoints" / name
        if not path.is_dir():
            continue
        with closing(Checkpoints(path, read_only=True)) as checkpoints:
            if checkpoints.newest is not None:
                return Trained(settings, path, name, checkpoints.notes()["frames"], checkpoints.newest)
    raise LabError(f"{folder} has no checkpoint yet; train for longer, or stop it with Ctrl-C, which saves")
