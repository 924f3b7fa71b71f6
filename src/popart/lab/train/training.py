"""`popart train`: emulators and the learner take turns so that neither waits for the other.

Environments are in a few groups that take turns. While one waits for its actions, which are queued on the
device behind what the network is learning, the others play. Python does no more than pass on what was seen,
and in another thread what to do, as soon as it is known. The order of what the device does, and of what each
group sees, does not depend on time, so that a run depends on its settings alone.
"""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from popart.lab.atari.games import scores
from popart.lab.dqn import learner, replay
from popart.lab.environments import Environments, Lasting, Scores
from popart.lab.machine import cores, stopping, use_device
from popart.lab.progress import progress, quantity
from popart.lab.runs import Run, command_line
from popart.lab.train import GROUPS, SMALL, Train, programs
from popart.lab.train.checkpoints import Checkpoints
from popart.lab.train.metrics import Table, summary
from popart.lab.train.playing import Player, Policy, first_episodes, make, seed
from popart.lab.train.programs import Acting
from popart.lab.train.room import check_replay

AGENTS = {"clipped": "Double DQN, clipped", "unclipped": "Double DQN, unclipped", "popart": "Pop-Art"}

RECENT = 100
"""Episodes whose mean is the score that is shown."""

EPISODES, LONGEST, EPSILON = 32, 27_000, 0.01
"""Of evaluations in training, to find the best agent; the longest episode is in frames."""

BUSY = 2
"""Threads that emulate, for each core that may: half of the groups may wait, and all cores are busy."""

AT_ONCE = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
"""On a GPU, what does not depend on each other in an update runs at the same time: the same bits, sooner."""


def run(settings: Train) -> Path:
    asked, settings = settings, settings.filled()
    use_device(settings.device)
    check_replay(settings)
    command = command_line("train", cast("Any", asked))
    with Run("train", title(settings), cast("Any", settings), Train.FREE, command) as run:
        if run.finished and settings.frames > run.settings["frames"]:
            run.reopen()
        if not run.finished:
            with Training(run, settings) as training:
                training.run()
            from popart.lab.train.curves import show

            show(run, settings)
            run.finish()
    return run.folder


def title(settings: Train) -> str:
    """Ms. Pac-Man: Pop-Art, say."""
    names = {score.game: score.title for score in scores()} | {
        name: game.label for name, game in SMALL.items()
    }
    return f"{names[settings.game]}: {AGENTS[settings.agent]}"


@dataclass
class Counts:
    """How far a run is, and what was not written down yet."""

    turns: int = 0
    """Of any group, and one for the end."""

    frames: int = 0
    steps: int = 0
    updates: int = 0
    episodes: int = 0
    remembered: int = 0
    """Steps since the replay was empty."""

    owed: int = 0
    """Steps that were not learned from yet."""

    wraps: int = 0
    logged: int = 0
    evaluated: int = 0
    """Frames at the last row, and at the last evaluation."""

    best: float | None = None
    seconds: float = 0.0
    began: float = 0.0
    """Seconds and updates at the last row."""

    began_updates: int = 0
    scores: list[float] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    playing: list[list[float]] = field(default_factory=list)
    """Scores so far, of each group."""

    metrics: list[list[float]] = field(default_factory=list)


class Training:
    """A run in progress."""

    def __init__(self, run: Run, settings: Train) -> None:
        self.folder, self.settings, self._run = run.folder, settings, run
        groups = GROUPS if settings.is_atari and settings.num_envs > 1 else 1
        self.size: int = settings.num_envs // groups
        threads = max(1, BUSY * (settings.threads or cores()) // groups) if groups > 1 else 1
        self.groups: list[Environments] = []
        with progress("starting", settings.num_envs, "environments") as advance:
            for _ in range(groups):
                self.groups.append(make(settings, self.size, threads, training=True))
                advance(self.size)
        self._lasting = [games for games in self.groups if isinstance(games, Lasting)]
        self.first = [jnp.int32(i * self.size) for i in range(groups)]
        self.network = self.groups[0].network(settings.dtype)
        self.checkpoints = Checkpoints(self.folder / "checkpoints" / "last")
        self.best = Checkpoints(self.folder / "checkpoints" / "best")
        self.schedule = settings.schedule
        self.per_call = max(1, self.schedule.updates(0, self.size))
        self._enough = max(settings.warm_up, settings.num_envs * (self.groups[0].stacked + 1))
        self.counts = Counts()
        self._sender = ThreadPoolExecutor(1)
        self._sending: dict[int, Future[None]] = {}
        self._pending: list[jax.Array] = []
        self._latest: learner.Metrics | None = None
        self._told = time.monotonic(), 0
        self._evaluator: Any = None
        self._stop: threading.Event | None = None
        self._saved_at = time.monotonic()
        self._compile()
        self._begin()

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.shutdown()
        for games in (*self.groups, *([self._evaluator] if self._evaluator else [])):
            games.close()
        self.checkpoints.close()
        self.best.close()
        self.table.close()

    def _compile(self) -> None:
        s, stacked = self.settings, self.groups[0].stacked
        self._observe = programs.compiled(programs.observe, self.network, s.schedule, stacked, s.reward_scale)
        options = AT_ONCE if jax.default_backend() == "gpu" else {}
        per_copy = self.schedule.updates_per_copy
        self._learn = programs.compiled(
            programs.learn, s.learning, self.network, stacked, self.per_call, per_copy, **options
        )

    def _begin(self) -> None:
        """From the last checkpoint, if there is one."""
        s, games = self.settings, self.groups[0]
        weights, acting, learning = jax.random.split(jax.random.key(s.seed), 3)
        slots = s.replay // s.num_envs
        fresh = partial(learner.init, s.learning, self.network)
        self.acting, self.learning = Acting(acting, jnp.int32(0)), learning
        self.scores = [Scores(self.size) for _ in self.groups]
        memory = partial(replay.init, s.num_envs, slots, games.shape, games.dtype)
        before = self.checkpoints.newest is not None
        self.agent = jax.eval_shape(fresh, weights) if before else jax.jit(fresh)(weights)
        if before and s.save_replay:
            self.memory = jax.eval_shape(memory)  # there may be no room for two
        else:
            self.memory = memory()
        if before:
            self._restore()
        if not (before and s.save_replay and self._lasting):
            restart = self._run.continued if before else 0
            for i, group in enumerate(self.groups):
                group.start(seed(s.seed, restart, i))
        self._run.cut_table("evaluations", self.counts.frames)
        if self.best.newest is not None:
            self.counts.best = self.best.notes()["score"]
        self.table = Table(self._run, self.counts.frames)
        self.clock = time.monotonic() - self.counts.seconds

    def run(self) -> None:
        s = self.settings
        shown, told = self.counts.frames, 0.0
        self._told = time.monotonic(), self.counts.updates
        with (
            progress(self.folder.name, s.frames, "frames", self.counts.frames) as advance,
            stopping() as stop,
        ):
            self._stop = stop
            while self.counts.frames < s.frames:
                for group in range(len(self.groups)):
                    self.step(group)
                self._keep_books()
                if stop.is_set():
                    self.save()
                    self.checkpoints.wait()
                    raise KeyboardInterrupt
                if time.monotonic() - told > 0.5:
                    told = time.monotonic()
                    advance(self.counts.frames - shown, self._doing())
                    shown = self.counts.frames
            self.counts.turns += 1  # or the next checkpoint would be taken for the last one
            if self.counts.logged < self.counts.frames:
                self._log()
            due = s.evaluate_every > 0 and self.counts.evaluated < self.counts.frames
            stopped = due and not self._evaluate()
            self.save()
            self.checkpoints.wait()
            if stopped:
                raise KeyboardInterrupt
            advance(self.counts.frames - shown, self._doing())

    def step(self, group: int) -> None:
        """One group shows what it saw and is told what to do; the network learns what is due."""
        games, counts = self.groups[group], self.counts
        counts.turns += 1
        self._sent(group)
        seen = games.receive()
        rest = np.stack((seen.reward, seen.terminal, seen.start, seen.last)).astype(np.float32)
        self.memory, self.acting, action = self._observe(
            self.memory, self.acting, self.agent.params, seen.observation, rest, self.first[group]
        )
        action.copy_to_host_async()
        self._sending[group] = self._sender.submit(_send, games, action)
        acted = self.size - int(np.count_nonzero(seen.last))
        counts.steps += acted
        counts.remembered += acted
        if counts.remembered > self._enough:  # with fewer of each, there is nothing to draw
            counts.owed += acted
        due = self.per_call * self.schedule.steps_per_update
        while counts.owed >= due:
            self.agent, self.learning, metrics = self._learn(self.agent, self.learning, self.memory)
            self._pending.append(metrics)
            counts.owed -= due
            counts.updates += self.per_call
        counts.frames += games.frames * (self.size - int(np.count_nonzero(seen.start)))
        ended = self.scores[group].add(seen)
        counts.scores += ended
        counts.episodes += len(ended)

    def _sent(self, group: int) -> None:
        """Wait until it has been told what to do."""
        if group in self._sending:
            self._sending.pop(group).result()

    def _keep_books(self) -> None:
        """Rows, evaluations and checkpoints, when they are due."""
        s, counts = self.settings, self.counts
        if counts.frames // s.log_every > counts.logged // s.log_every:
            self._log()
        if s.evaluate_every and counts.frames // s.evaluate_every > counts.evaluated // s.evaluate_every:
            self._evaluate()
        if time.monotonic() - self._saved_at > s.checkpoint_every:
            self.save()

    def _fetch(self) -> None:
        """Bring the metrics of updates from the device."""
        for metrics in self._pending:
            self.counts.metrics += np.asarray(metrics).T.tolist()
        self._pending = []

    def _log(self) -> None:
        counts = self.counts
        self._fetch()
        counts.recent = (counts.recent + counts.scores)[-RECENT:]
        counts.seconds = time.monotonic() - self.clock
        counts.wraps += sum(games.wraps for games in self.groups)
        for games in self.groups:
            games.wraps = 0
        took = max(counts.seconds - counts.began, 1e-9)
        self.table.add(
            {
                "frames": counts.frames,
                "steps": counts.steps,
                "updates": counts.updates,
                "episodes": counts.episodes,
                "score": _mean(counts.scores),
                "score_100": _mean(counts.recent),
                "epsilon": float(self.schedule.epsilon_at(np.float32(counts.steps))),  # pyright: ignore[reportArgumentType]
                **summary(np.array(counts.metrics, np.float32)),
                "wraps": counts.wraps,
                "seconds": round(counts.seconds, 3),
                "frames_per_second": round((counts.frames - counts.logged) / took, 1),
                "updates_per_second": round((counts.updates - counts.began_updates) / took, 1),
            }
        )
        counts.scores, counts.metrics = [], []
        counts.logged, counts.began, counts.began_updates = counts.frames, counts.seconds, counts.updates

    def _doing(self) -> str:
        counts = self.counts
        recent = (counts.recent + counts.scores)[-RECENT:]
        words = [f"score {_mean(recent):.4g}" if recent else "no episode yet"]
        if len(self._pending) > 3:  # the newest may not be computed yet
            self._latest = learner.Metrics(*np.asarray(self._pending[-4])[:, -1])
        if self._latest:
            now, latest = time.monotonic(), self._latest
            rate = (counts.updates - self._told[1]) / max(now - self._told[0], 1e-9)
            self._told = now, counts.updates
            words.append(f"μ {latest.shift:.3g}, σ {latest.scale:.3g}, gradient {latest.gradient_norm:.3g}")
            words.append(f"{quantity(rate)} updates/s")
        elif not counts.updates:
            words.append("filling the replay")
        return ", ".join(words)

    def _evaluate(self) -> bool:
        """Play some episodes, and keep the agent if it is the best so far; false if it was stopped."""
        counts, began = self.counts, time.monotonic()
        if self._evaluator is None:
            options = {"episode": LONGEST} if self.settings.is_atari else {}
            self._evaluator = make(self.settings, EPISODES, self.settings.threads, training=False, **options)
        policy = Policy(self.agent.params, self.agent.statistics)
        now = seed(self.settings.seed, counts.frames)
        player = Player(self.network, self._evaluator, policy, EPSILON, now)
        found = first_episodes([player], stop=self._stop)
        if found is None:
            return False
        score = float(np.mean(found))
        rows = self._run.read_table("evaluations")
        self._run.write_table("evaluations", [*rows, {"frames": counts.frames, "score": score}])
        counts.evaluated = counts.frames
        counts.began += time.monotonic() - began
        if counts.best is None or score > counts.best:
            counts.best = score
            self.best.save(
                (self.best.newest or 0) + 1, {"frames": counts.frames, "score": score}, policy=policy
            )
        return True

    def save(self) -> None:
        """Begin a checkpoint of everything that the rest of the run depends on."""
        for group in range(len(self.groups)):
            self._sent(group)
        self._fetch()
        counts = self.counts
        counts.seconds = time.monotonic() - self.clock
        counts.playing = [scores.now.tolist() for scores in self.scores]
        self.best.wait()
        policy = Policy(self.agent.params, self.agent.statistics)
        notes = {"frames": counts.frames, "counts": asdict(counts)}
        self.checkpoints.save(counts.turns, notes, policy=policy, **self._arrays())
        self._saved_at = time.monotonic()

    def _arrays(self) -> dict[str, Any]:
        keys = [jax.random.key_data(key) for key in (self.acting.key, self.learning)]
        arrays: dict[str, Any] = {"agent": self.agent, "playing": (*keys, self.acting.steps)}
        if self.settings.save_replay:
            arrays["memory"] = self.memory
        if self._lasting:
            arrays["worlds"] = [jax.tree.leaves(games.state()) for games in self._lasting]
        return arrays

    def _restore(self) -> None:
        notes = self.checkpoints.notes()
        for games in self._lasting:
            games.start(0)
        arrays = {name: self.checkpoints.arrays(name, like) for name, like in self._arrays().items()}
        self.agent = arrays["agent"]
        acting, learning, steps = arrays["playing"]
        self.acting = Acting(jax.random.wrap_key_data(acting), steps)
        self.learning = jax.random.wrap_key_data(learning)
        self.counts = Counts(**notes["counts"])
        if self.settings.save_replay:
            self.memory = arrays["memory"]
        else:
            self.counts.remembered = self.counts.owed = 0
        if self._lasting:
            for games, leaves in zip(self._lasting, arrays["worlds"], strict=True):
                games.restore(jax.tree.unflatten(jax.tree.structure(games.state()), leaves))
            for scores, now in zip(self.scores, self.counts.playing, strict=True):
                scores.now = np.array(now)
        else:
            self.memory = jax.jit(replay.interrupt, donate_argnums=0)(self.memory)


def _send(games: Environments, action: jax.Array) -> None:
    """As soon as the device has chosen."""
    games.send(np.asarray(action))


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
