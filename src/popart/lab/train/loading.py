"""Load trained agents from run folders, also of unfinished runs."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from popart.lab.checks import LabError
from popart.lab.console import say
from popart.lab.dqn import learner
from popart.lab.dqn.learner import Policy
from popart.lab.dqn.networks import Network, network_for
from popart.lab.envs.timestep import Environments
from popart.lab.files import REPAIR
from popart.lab.manifest import read_manifest
from popart.lab.train.config import Member, member_of
from popart.lab.train.storage import DAMAGE, Checkpoint, Checkpoints, ReplacedError

Which = Literal["best", "last"]

TRIES = 20
"""Number of attempts to read a checkpoint: a run in progress may replace it meanwhile."""


class Trained(NamedTuple):
    """A trained agent: its settings, its checkpoint, and the frames it was trained for."""

    settings: Member
    checkpoint: Checkpoint
    which: Which
    frames: int

    def network(self, games: Environments) -> Network:
        """Return the network of the agent, for environments of its game."""
        return network_for(games.spec.shape, games.actions, self.settings.dtype)

    def policy(self, network: Network) -> Policy:
        """Load the policy; an agent that diverged in training is refused."""
        shape = jax.eval_shape(partial(learner.init, self.settings.agent, network), jax.random.key(0))
        try:
            policy = self.checkpoint.arrays("policy", Policy(shape.params, shape.statistics))
        except DAMAGE as error:
            if not self.checkpoint.path.exists():
                raise ReplacedError(self.checkpoint.path) from error
            raise LabError(f"{self.checkpoint.path} is damaged: {error}; {REPAIR}") from error
        if not all(np.isfinite(x).all() for x in jax.tree.leaves(policy)):
            raise LabError(
                f"{self.checkpoint.path} has weights that are not finite: the agent diverged in training; "
                "give another run, or another agent of the run with --which"
            )
        return jax.device_put(policy)


def load(folder: Path, which: Which) -> Trained:
    """Load the best agent of a run or the last one; without evaluations, the last one is the best."""
    manifest: dict[str, Any] = read_manifest(folder)
    if manifest["experiment"] != "train":
        raise LabError(f"{folder} is a run of {manifest['experiment']!r}, not of 'train'")
    try:
        settings = member_of(manifest["settings"], folder)
    except KeyError as error:
        raise LabError(f"{folder} has a manifest without the setting {error}") from error
    except ValueError as error:
        raise LabError(f"{folder} has a manifest that makes no sense: {error}") from error
    for _ in range(TRIES):
        with suppress(ReplacedError):
            return _newest(settings, folder, which, manifest["finished"] is not None)
    raise ReplacedError(folder / "checkpoints")


def _without_best(folder: Path) -> str:
    evaluated = (folder / "evaluations.csv").exists()
    reason = "the checkpoint of its best agent is missing" if evaluated else "training has made no evaluation"
    return f"{folder} has no best agent, because {reason}; the last agent plays"


def _newest(settings: Member, folder: Path, which: Which, finished: bool) -> Trained:
    """Find the newest checkpoint whose policy is not damaged."""
    for name in dict.fromkeys((which, "last")):
        found = Checkpoints(folder / "checkpoints" / name).load({"policy": None})
        if found:
            if name != which:
                say(_without_best(folder))
            return Trained(settings, found.checkpoint, name, found.notes["frames"])
    if finished:
        raise LabError(
            f"{folder} is a finished run without its checkpoints, which hold the agent; copy them to "
            f"{folder / 'checkpoints'}, or train the run again with another --out"
        )
    raise LabError(f"{folder} has no checkpoint yet; train for longer, or stop it with Ctrl-C, which saves")
