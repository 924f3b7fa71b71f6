"""The training loop: a generator of turns, in each of which every environment takes a step.

Environments are in groups. While one group waits for its actions, which are queued on the device behind the
updates, the others play. Python only passes on observations and, in another thread, the actions as soon as
they are known. The order of computations does not depend on time, so that a run depends on its settings
alone; and nothing of a member depends on the other members.
"""

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import jax
import numpy as np

from popart.lab.envs.timestep import SavableSuite, Scores, Suite, TimeStep, derived_seed
from popart.lab.machine import switching_often
from popart.lab.train.config import Member
from popart.lab.train.fleet import Fleet


@dataclass
class Counts:
    """Counters of each member, `(members,)`."""

    turns: np.ndarray
    frames: np.ndarray
    steps: np.ndarray
    updates: np.ndarray
    episodes: np.ndarray
    stored: np.ndarray
    """Agent steps since the replay buffer was empty."""

    owed: np.ndarray
    """Agent steps since the last update."""

    overflows: np.ndarray
    """Score overflows."""

    seconds: np.ndarray
    """Seconds in the loop, without the time of trackers."""

    @classmethod
    def zeros(cls, members: int) -> "Counts":
        kinds = {"seconds": float}
        return cls(*(np.zeros(members, kinds.get(f.name, np.int64)) for f in fields(cls)))


class Turn(NamedTuple):
    """The state of a fleet after a turn, and what happened in it. Arrays have one entry per member."""

    counts: Counts
    active: np.ndarray
    """Members that are still learning: neither finished nor failed."""

    episodes: list[tuple[int, float]]
    """Member and score of each episode that ended."""

    metrics: list[tuple[np.ndarray, jax.Array]]
    """For each learning call: members that learned, and metrics (members, fields, updates) on the device."""

    failures: dict[int, str]
    """Members that were stopped, with the reason."""

    fail: Callable[[int, str], None]
    """Stop a member."""


class Loop:
    """Plays and learns. `turns` yields the state as it is before the first turn, and then after each."""

    def __init__(self, members: Sequence[Member], fleet: Fleet, suite: Suite) -> None:
        self.members, self.fleet, self.suite = members, fleet, suite
        self.counts = Counts.zeros(len(members))
        self.failures: dict[int, str] = {}
        self._scores = [Scores((len(members), suite.size)) for _ in range(suite.groups)]
        one = members[0]
        self._per_call = fleet.updates_per_call * one.schedule.steps_per_update
        self._enough = max(one.schedule.warm_up, one.num_envs * (suite.spec.stack_size + 1))
        self._overflows_before = np.zeros(len(members), np.int64)
        self._sending: dict[int, Future[None]] = {}
        self._episodes: list[tuple[int, float]] = []
        self._metrics: list[tuple[np.ndarray, jax.Array]] = []

    @property
    def active(self) -> np.ndarray:
        wanted = np.array([member.frames for member in self.members])
        failed = np.isin(np.arange(len(self.members)), list(self.failures))
        return (self.counts.frames < wanted) & ~failed

    def turns(self) -> Generator[Turn, None, None]:
        with ThreadPoolExecutor(1) as sender, switching_often():
            yield self._turn()
            while self.active.any():
                active, began = self.active, time.monotonic()
                for group in range(self.suite.groups):
                    self._step(group, active, sender)
                self.counts.turns[active] += 1
                self.counts.overflows = self._overflows_before + self.suite.overflows
                self.counts.seconds[active] += time.monotonic() - began
                yield self._turn()
                for member in np.flatnonzero(active & ~self.active):
                    self.suite.stop(int(member))

    def _turn(self) -> Turn:
        turn = Turn(self.counts, self.active, self._episodes, self._metrics, self.failures, self.fail)
        self._episodes, self._metrics = [], []
        return turn

    def fail(self, member: int, reason: str) -> None:
        self.failures.setdefault(member, reason)

    def _step(self, group: int, active: np.ndarray, sender: ThreadPoolExecutor) -> None:
        """Receive the time step of a group and choose its actions; then train the members that are due."""
        self.wait_sent(group)
        observation, *results = self.suite.receive(group)
        for member, reason in self.suite.failures.items():
            self.fail(member, reason)
        seen = TimeStep(observation, *map(np.array, results))  # copies: the next step overwrites them
        action = self.fleet.observe(group, seen)
        action.copy_to_host_async()
        self._sending[group] = sender.submit(self._send, group, action)
        self._count(seen, active)
        self._learn(active)
        ended = self._scores[group].add(seen) & active[:, None]
        for member, environment in np.argwhere(ended).tolist():
            self._episodes.append((member, float(self._scores[group].now[member, environment])))
        self.counts.episodes += ended.sum(1)

    def _count(self, seen: TimeStep, active: np.ndarray) -> None:
        counts, acted = self.counts, active * (~seen.last).sum(1)
        counts.steps += acted
        counts.stored += acted
        counts.owed += acted * (counts.stored > self._enough)  # with fewer, there is nothing to sample
        counts.frames += self.suite.spec.frames_per_step * active * (~seen.first).sum(1)

    def _learn(self, active: np.ndarray) -> None:
        counts = self.counts
        while (due := active & (counts.owed >= self._per_call)).any():
            self._metrics.append((due, self.fleet.learn(due)))
            counts.owed[due] -= self._per_call
            counts.updates[due] += self.fleet.updates_per_call

    def _send(self, group: int, action: jax.Array) -> None:
        """Send the actions as soon as the device has chosen them."""
        self.suite.send(group, np.asarray(action))

    def wait_sent(self, group: int) -> None:
        """Wait until a group has its actions."""
        if group in self._sending:
            self._sending.pop(group).result()

    def notes(self, member: int) -> dict[str, Any]:
        """Return the state of the loop besides arrays, as JSON for a checkpoint."""
        counts = {name: value[member].item() for name, value in asdict(self.counts).items()}
        return {"counts": counts, "scores": [each.now[member].tolist() for each in self._scores]}

    def snapshot(self, member: int) -> dict[str, Any]:
        """Return copies of the arrays that a checkpoint has, as they are now."""
        for group in range(self.suite.groups):
            self.wait_sent(group)
        state = self.fleet.snapshot(member)
        if isinstance(self.suite, SavableSuite):
            state["environments"] = self.suite.state(member)
        return state

    def arrays(self, member: int, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Return the arrays of a checkpoint on the host, from a snapshot."""
        return self.fleet.arrays(member, snapshot)

    def shapes(self, member: int) -> dict[str, Any]:
        """Return the shapes and types of `arrays`."""
        state = self.fleet.shapes(member)
        if isinstance(self.suite, SavableSuite):
            state["environments"] = self.suite.state(member)
        return state

    def start(self, saved: Sequence[dict[str, Any] | None], resumed: Sequence[int]) -> None:
        """Start each member, or resume it from its `arrays`; `resumed` counts how often that has happened."""
        worlds = [None if one is None else one.pop("environments", None) for one in saved]
        self.fleet.start(saved)
        for m, (one, world) in enumerate(zip(saved, worlds, strict=True)):
            if world is not None and isinstance(self.suite, SavableSuite):
                self.suite.restore(m, world)
                continue
            seeds = (self.members[m].seed, 0 if one is None else resumed[m])
            self.suite.reset(m, [derived_seed(*seeds, group) for group in range(self.suite.groups)])
            if one is not None:
                self.fleet.interrupt(m)

    def restore(self, member: int, notes: dict[str, Any]) -> None:
        """Restore the state that `notes` returned."""
        for name, value in notes["counts"].items():
            getattr(self.counts, name)[member] = value
        if not self.members[member].save_replay:
            self.counts.stored[member] = self.counts.owed[member] = 0
        if isinstance(self.suite, SavableSuite):
            for scores, now in zip(self._scores, notes["scores"], strict=True):
                scores.now[member] = now
        self._overflows_before[member] = self.counts.overflows[member]
