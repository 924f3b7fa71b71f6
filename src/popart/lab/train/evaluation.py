"""The tracker of evaluations: it plays episodes at regular intervals, and saves the best agent."""

from collections.abc import Sequence
from threading import Event
from typing import Any

import numpy as np

from popart.lab.dqn.learner import Policy
from popart.lab.dqn.networks import Network
from popart.lab.envs.timestep import derived_seed
from popart.lab.runs import Run
from popart.lab.schemas import BestNotes
from popart.lab.train.config import Member
from popart.lab.train.episodes import Player, first_episodes
from popart.lab.train.fleet import Fleet
from popart.lab.train.games import environments
from popart.lab.train.loop import Turn
from popart.lab.train.storage import Checkpoints
from popart.lab.train.tracker import crossed

NAME = "evaluations"
EPISODES, EPISODE_FRAMES, EPSILON = 32, 27_000, 0.01
"""Episodes of an evaluation, frames of the longest episode, and the probability of a random action."""


class EvaluationTracker:
    """Evaluates each member whenever it has played `evaluate_every` frames, and at its end."""

    def __init__(self, members: Sequence[Member], runs: Sequence[Run], fleet: Fleet, stop: Event) -> None:
        self._members, self._runs, self._fleet, self._stop = members, runs, fleet, stop
        self._evaluated = [0] * len(members)
        self._best: list[float | None] = [None] * len(members)

    def step(self, turn: Turn) -> None:
        for member, settings in enumerate(self._members):
            frames, every = int(turn.counts.frames[member]), settings.evaluate_every
            ended = every > 0 and not turn.active[member] and self._evaluated[member] < frames
            if member not in turn.failures and (ended or crossed(self._evaluated[member], frames, every)):
                self._evaluate(member, frames)

    def _evaluate(self, member: int, frames: int) -> None:
        """Play some episodes, and save the agent if it is the best so far; do nothing if interrupted."""
        settings, policy = self._members[member], self._fleet.policy(member)
        seed = derived_seed(settings.seed, frames)
        score = evaluate(settings, self._fleet.networks[member], policy, seed, self._stop)
        if score is None:
            return
        run = self._runs[member]
        run.write_table(NAME, [*run.read_table(NAME), {"frames": frames, "score": score}])
        self._evaluated[member] = frames
        best = self._best[member]
        if best is None or score > best:
            self._best[member], store = score, self._store(member)
            store.save((store.newest or 0) + 1, {"frames": frames, "score": score}, policy=policy)

    def _store(self, member: int) -> Checkpoints:
        return Checkpoints(self._runs[member].folder / "checkpoints" / "best")

    def notes(self, member: int) -> dict[str, Any]:
        return {"evaluated": self._evaluated[member]}

    def restore(self, member: int, notes: dict[str, Any]) -> None:
        self._evaluated[member] = notes["evaluated"]

    def start(self, frames: Sequence[int]) -> None:
        """Remove evaluations after the checkpoint that each member starts from, and find the best agents."""
        for member, (run, last) in enumerate(zip(self._runs, frames, strict=True)):
            run.cut_table(NAME, last)
            for row in run.read_table(NAME):  # the last one may be newer than the checkpoint's notes
                self._evaluated[member] = max(self._evaluated[member], int(row["frames"]))
            shape = self._fleet.agent_shapes[member]
            best = self._store(member).load({"policy": Policy(shape.params, shape.statistics)}, BestNotes)
            self._best[member] = best.notes["score"] if best else None

    def close(self) -> None:
        pass


def evaluate(settings: Member, network: Network, policy: Policy, seed: int, stop: Event) -> float | None:
    """Return the mean score of some episodes; None if interrupted."""
    options = {"episode_frames": EPISODE_FRAMES} if settings.is_atari else {}
    games = environments(settings, EPISODES, settings.threads, training=False, **options)
    try:
        player = Player(network, games, policy, EPSILON, seed)
        scores = first_episodes([player], stop=stop)
    finally:
        games.close()
    return None if scores is None else float(np.mean(scores))
