"""The tracker of checkpoints, which save the complete state of each member."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from popart.lab.dqn.learner import Policy
from popart.lab.runs import Run
from popart.lab.schemas import LastNotes
from popart.lab.train.loop import Loop, Turn
from popart.lab.train.storage import Checkpoints
from popart.lab.train.tracker import Saved


class CheckpointTracker:
    """Saves each member every few seconds, and at its end. A failed member keeps its last checkpoint.

    Members are saved one after the other, not all at once, so that the others do not wait. Each resumes from
    its own checkpoint.

    Args:
        runs: the run folder of each member.
        loop: the training loop, whose arrays and notes are saved.
        parts: other parts of a checkpoint, by name.
        every: seconds between two checkpoints of a member.
    """

    def __init__(self, runs: Sequence[Run], loop: Loop, parts: Mapping[str, Saved], every: float) -> None:
        self._stores = [Checkpoints(run.folder / "checkpoints" / "last") for run in runs]
        self._loop, self._parts, self._every = loop, {**parts, "loop": loop}, every
        self._due = time.monotonic() + every * (np.arange(len(runs)) + 1) / len(runs)
        """Time of the next checkpoint of each member."""

        self._saved = np.zeros(len(runs), np.int64)
        """Turns of each member at its last checkpoint."""

        self._writer = ThreadPoolExecutor(1)
        self._writing: list[Future[None]] = []

    def start(self, resumed: Sequence[int]) -> list[int]:
        """Load the checkpoints of members that have one; return the frames of each member."""
        saved = [self._load(member, store) for member, store in enumerate(self._stores)]
        self._loop.start(saved, resumed)
        return self._loop.counts.frames.tolist()

    def _load(self, member: int, store: Checkpoints) -> dict[str, Any] | None:
        content = store.load(self._loop.shapes(member), LastNotes)
        if content is None:
            return None
        for name, part in self._parts.items():
            part.restore(member, content.notes[name])
        self._saved[member] = content.checkpoint.step
        return content.arrays

    def step(self, turn: Turn) -> None:
        ended = ~turn.active & (turn.counts.turns > self._saved)
        self._save_some(ended | turn.active & (time.monotonic() > self._due), turn)

    def save(self, turn: Turn) -> None:
        """Write checkpoints of all members, and wait for them."""
        self._save_some(turn.counts.turns > self._saved, turn)
        self.wait()

    def _save_some(self, which: np.ndarray, turn: Turn) -> None:
        for member in np.flatnonzero(which).tolist():
            if member not in turn.failures:
                self._save(member, int(turn.counts.turns[member]))
                self._due[member] = time.monotonic() + self._every

    def _save(self, member: int, turns: int) -> None:
        """Take a snapshot now, and bring it to the disk in the background."""
        if self._loop.members[member].save_replay:
            self._finish_writing()  # one replay buffer at a time in the machine's memory
        self._writing = [each for each in self._writing if not each.done() or each.result()]
        notes = {name: part.notes(member) for name, part in self._parts.items()}
        notes["frames"] = notes["loop"]["counts"]["frames"]
        snapshot = self._loop.snapshot(member)
        self._writing.append(self._writer.submit(self._write, member, turns, notes, snapshot))
        self._saved[member] = turns

    def _write(self, member: int, turns: int, notes: dict[str, Any], snapshot: dict[str, Any]) -> None:
        arrays = self._loop.arrays(member, snapshot)
        policy = Policy(arrays["agent"].params, arrays["agent"].statistics)
        self._stores[member].save(turns, notes, policy=policy, **arrays)

    def _finish_writing(self) -> None:
        for each in self._writing:
            each.result()
        self._writing = []

    def wait(self) -> None:
        """Wait until everything is on disk."""
        self._finish_writing()

    def close(self) -> None:
        self._writer.shutdown()
