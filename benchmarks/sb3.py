"""Stable-Baselines3 with and without Pop-Art: its cost, and returns for rewards of other scales.

    python -m benchmarks.sb3 --what cost [--seconds 30]
    python -m benchmarks.sb3 --what scales [--workers 16]

`cost` times `learn` of each algorithm, plain and with Pop-Art, which take turns in one process on one thread.
Reported are the least time per environment step of each, its ratio to that of the plain algorithm, and the
quartiles over rounds of the ratio within a round.

`scales` trains each algorithm, plain and with Pop-Art, with rewards times 1e-4, 1 and 1e4, for three seeds,
and evaluates it with 20 episodes, whose returns are of the rewards as they are. Runs are independent
processes. A run that has a row in the table already is not run again. It writes the table and a figure.

The settings ("tuned") are those of rl_zoo3 2.9.2 for PPO and DQN. The others are shorter and smaller, so that
all runs together take half an hour on two cores; what differs from rl_zoo3 is in `SHORTENED`. For the cost
alone there are also the defaults of Stable-Baselines3.
"""

import argparse
import csv
import functools
import json
import math
import multiprocessing
import platform
import statistics
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import stable_baselines3
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule

import popart.sb3
from popart.lab.figures import COLOURS, images, letter, styled, subplots

SCALES, SEEDS, EPISODES = (1e-4, 1.0, 1e4), (0, 1, 2), 20
HEADS = ("plain", "popart")


@dataclass(frozen=True)
class Setting:
    """The environment, the number of its copies, environment steps, and arguments of the algorithm."""

    environment: str
    steps: int
    copies: int = 1
    arguments: dict[str, Any] = field(default_factory=dict)


def linear(start: float) -> LinearSchedule:
    return LinearSchedule(start, 0.0, 1.0)


TUNED = {
    "PPO": Setting(
        "CartPole-v1",
        100_000,
        8,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "learning_rate": linear(1e-3),
            "clip_range": linear(0.2),
        },
    ),
    "A2C": Setting("CartPole-v1", 150_000, 8),
    "DQN": Setting(
        "CartPole-v1",
        50_000,
        1,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "SAC": Setting(
        "Pendulum-v1",
        6_000,
        1,
        {"learning_rate": 1e-3, "batch_size": 128, "policy_kwargs": {"net_arch": [64, 64]}},
    ),
    "TD3": Setting(
        "Pendulum-v1",
        8_000,
        1,
        {
            "gamma": 0.98,
            "learning_rate": 1e-3,
            "batch_size": 128,
            "learning_starts": 1000,
            "action_noise": NormalActionNoise(np.zeros(1), 0.1 * np.ones(1)),
            "policy_kwargs": {"net_arch": [64, 64]},
        },
    ),
}
SHORTENED: dict[str, dict[str, tuple[Any, Any]]] = {
    "A2C": {"n_timesteps": (150_000, 500_000)},
    "SAC": {
        "n_timesteps": (6_000, 20_000),
        "batch_size": (128, 256),
        "policy_kwargs": ({"net_arch": [64, 64]}, None),
    },
    "TD3": {
        "n_timesteps": (8_000, 20_000),
        "buffer_size": (1_000_000, 200_000),
        "learning_starts": (1_000, 10_000),
        "batch_size": (128, 256),
        "policy_kwargs": ({"net_arch": [64, 64]}, {"net_arch": [400, 300]}),
    },
}
"""Settings that differ from those of rl_zoo3 2.9.2, by its names: ours, and its own or the default."""

DEFAULTS = {name: Setting(setting.environment, setting.steps) for name, setting in TUNED.items()}


class ScaledRewards(gymnasium.RewardWrapper[Any, Any]):
    """An environment with all rewards multiplied by a number."""

    def __init__(self, env: Any, scale: float) -> None:
        super().__init__(env)
        self.scale = scale

    def reward(self, reward: Any) -> float:
        return reward * self.scale


def make(algorithm: str, head: str, setting: Setting, scale: float = 1.0, seed: int = 0, **more: Any) -> Any:
    """Make an algorithm and its environment."""
    env = make_vec_env(
        setting.environment,
        setting.copies,
        seed=seed,
        wrapper_class=functools.partial(ScaledRewards, scale=scale),
    )
    plain, pop_art = getattr(stable_baselines3, algorithm), getattr(popart.sb3, f"PopArt{algorithm}")
    kind = plain if head == "plain" else pop_art
    return kind("MlpPolicy", env, seed=seed, device="cpu", **setting.arguments, **more)


class Run(NamedTuple):
    """One training run: what identifies a row of the table."""

    algorithm: str
    environment: str
    head: str
    scale: float
    seed: int
    steps: int

    def key(self) -> list[str]:
        return [*self[:3], f"{self.scale:g}", str(self.seed), str(self.steps)]


HEADER = ["algorithm", "environment", "head", "reward scale", "seed", "steps", "return", "seconds"]


def result(run: Run) -> list[str]:
    """Train and evaluate; the row of the table. The return is NaN if the network had become NaN."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    setting = TUNED[run.algorithm]
    model = make(run.algorithm, run.head, setting, run.scale, run.seed)
    try:
        model.learn(run.steps)
        env = make_vec_env(setting.environment, 1, seed=1000 + run.seed)
        score = float(np.mean(evaluate_policy(model, env, EPISODES, return_episode_rewards=True)[0]))
    except ValueError as error:
        if "nan" not in str(error).lower():
            raise
        score = math.nan
    return [*run.key(), f"{score:.2f}", f"{time.perf_counter() - start:.1f}"]


def runs(algorithms: Sequence[str], steps_scale: float) -> list[Run]:
    """All runs, those that take longest first."""
    return [
        Run(name, TUNED[name].environment, head, scale, seed, max(1, round(TUNED[name].steps * steps_scale)))
        for name in sorted(algorithms, key=["SAC", "TD3", "A2C", "PPO", "DQN"].index)
        for scale in SCALES
        for seed in SEEDS
        for head in HEADS
    ]


def read(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    if header != HEADER:
        raise ValueError(f"{path} has the columns {header}; they must be {HEADER}")
    return rows


def sweep(path: Path, todo: Iterable[Run], workers: int) -> None:
    """Run what has no row yet, and append a row as soon as a run has finished."""
    done = {tuple(row[:6]) for row in read(path)}
    missing = [run for run in todo if tuple(run.key()) not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not done:
        append(path, HEADER)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, max_tasks_per_child=1) as pool:
        for n, future in enumerate(as_completed([pool.submit(result, run) for run in missing]), 1):
            append(path, future.result())
            print(f"{n} of {len(missing)}: {', '.join(future.result())}", flush=True)


def append(path: Path, row: Sequence[str]) -> None:
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(row)


def returns(rows: Iterable[Sequence[str]], algorithm: str, head: str, scale: float) -> list[float]:
    """Return the returns of all seeds."""
    wanted = (algorithm, head, f"{scale:g}")
    return [float(row[6]) for row in rows if (row[0], row[2], row[3]) == wanted]


def write_manifest(path: Path, **settings: Any) -> None:
    versions = {module.__name__: module.__version__ for module in (stable_baselines3, gymnasium, torch, np)}
    manifest = {"command": "python -m benchmarks.sb3 --what scales", "device": "CPU, one thread per run"}
    manifest |= {**settings, **versions, "python": platform.python_version()}
    path.with_suffix(".json").write_text(json.dumps(manifest, indent=2) + "\n")


def told(values: Sequence[float]) -> str:
    if not values:
        return ""
    each = ", ".join("NaN" if math.isnan(x) else f"{x:.0f}" for x in sorted(values))
    return f"{statistics.fmean(values):.0f} ({each})"


def page_rows(path: Path) -> list[str]:
    """Return the rows of the table in the how-to page, from the runs with the steps of the settings."""
    rows = [row for row in read(path) if int(row[5]) == TUNED[row[0]].steps]
    return [
        f"| {name} | {'Pop-Art' if head == 'popart' else head} | "
        + " | ".join(told(returns(rows, name, head, scale)).replace("-", "−") for scale in SCALES)
        + " |"
        for name in TUNED
        for head in HEADS
    ]


def print_table(rows: Sequence[Sequence[str]], algorithms: Sequence[str], steps: dict[str, int]) -> None:
    """Print mean returns, and those of all seeds, for each reward scale."""
    columns = [f"rewards × {scale:g}" for scale in SCALES]
    table = Table("algorithm", "environment", "steps", "head", *columns)
    for name in algorithms:
        for head in HEADS:
            cells = [told(returns(rows, name, head, scale)) for scale in SCALES]
            table.add_row(
                name, TUNED[name].environment, str(steps[name]), head, *cells, end_section=head == HEADS[-1]
            )
    Console(width=150).print(table)


def panel(axes: Axes, rows: Sequence[Sequence[str]], name: str) -> None:
    for head, label, colour in zip(
        HEADS, ("plain", "Pop-Art"), (COLOURS["sgd"], COLOURS["popart"]), strict=True
    ):
        found = [returns(rows, name, head, scale) for scale in SCALES]
        means = [statistics.fmean(values) if values else math.nan for values in found]
        axes.plot(SCALES, means, color=colour, label=label)
        for scale, values in zip(SCALES, found, strict=True):
            axes.plot([scale] * len(values), values, "o", color=colour, markersize=3, alpha=0.6)
    axes.set(xscale="log", xticks=SCALES, xlabel="rewards ×")
    axes.minorticks_off()
    axes.grid()
    letter(axes, f"{name}, {TUNED[name].environment.removesuffix('-v1')}")


@styled
def figure(rows: Sequence[Sequence[str]], algorithms: Sequence[str]) -> Figure:
    """Draw returns against the reward scale: means as lines, seeds as dots; the sixth panel is the legend."""
    drawn, grid = subplots(2, 3, height=4.4)
    for axes, name in zip(grid.flat, algorithms, strict=False):
        panel(axes, rows, name)
    for axes in grid.flat[len(algorithms) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set(ylabel="return, unscaled")
    grid[1, 2].legend(*grid[0, 0].get_legend_handles_labels(), loc="center")
    return drawn


def scales(options: argparse.Namespace) -> None:
    todo = runs(options.algorithms, options.steps_scale)
    sweep(options.path, todo, options.workers)
    wanted = {tuple(run.key()) for run in todo}
    rows = [row for row in read(options.path) if tuple(row[:6]) in wanted]
    steps = {run.algorithm: run.steps for run in todo}
    write_manifest(
        options.path,
        settings="rl_zoo3 2.9.2, with exceptions",
        exceptions={name: SHORTENED[name] for name in options.algorithms if name in SHORTENED},
        steps=steps,
        beta={name: getattr(popart.sb3, f"PopArt{name}").BETA for name in options.algorithms},
        seeds=list(SEEDS),
        evaluation_episodes=EPISODES,
    )
    print_table(rows, options.algorithms, steps)
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    options.figure.write_bytes(dict(images(figure(rows, options.algorithms)))["png"])
    print(options.path)


def cost(options: argparse.Namespace) -> None:
    from benchmarks.tables import publish
    from benchmarks.timing import Case, compare

    torch.set_num_threads(1)
    rows: list[list[str]] = []
    for kind, settings in (("defaults", DEFAULTS), ("tuned", TUNED)):
        for name in options.algorithms:
            cases = [
                Case((name, settings[name].environment, kind, head), *learning(name, head, settings[name]))
                for head in HEADS
            ]
            times = compare(cases, options.seconds, options.turn)
            for case, (seconds, ratio, *_), quartiles in zip(
                cases, times, (t.quartiles for t in times), strict=True
            ):
                rows.append([*case.labels, f"{seconds * 1e6:.0f}", f"{ratio:.3f}", quartiles])
                print(", ".join(rows[-1]), flush=True)
    header = ["algorithm", "environment", "settings", "head", "µs per environment step", "ratio", "quartiles"]
    more = {module.__name__: module.__version__ for module in (stable_baselines3, gymnasium)}
    publish(options.path, header, rows, "sb3 --what cost", "CPU, one thread", sections=3, **more)


def learning(name: str, head: str, setting: Setting) -> tuple[Any, int]:
    """Return a function that learns for n steps, after the warm-up of the replay buffer, and a unit of n."""
    warm_up = {"learning_starts": 1000} if "learning_starts" in setting.arguments else {}
    arguments = setting.arguments | warm_up
    model = make(name, head, Setting(setting.environment, setting.steps, setting.copies, arguments))
    frequency = getattr(model, "train_freq", model.__dict__.get("n_steps"))
    unit = setting.copies * int(getattr(frequency, "frequency", frequency))
    model.learn(1000)
    return lambda n: model.learn(n, reset_num_timesteps=False), unit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=["cost", "scales"], required=True)
    parser.add_argument("--algorithms", nargs="+", choices=list(TUNED), default=list(TUNED))
    parser.add_argument("--path", type=Path, help="the table (default: in results/)")
    parser.add_argument("--figure", type=Path, default=Path("docs/sb3.png"), help="of --what scales")
    parser.add_argument("--workers", type=int, default=2, help="runs at once (default 2)")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="a factor of all training steps")
    parser.add_argument("--seconds", type=float, default=30, help="per algorithm, for the cost (default 30)")
    parser.add_argument("--turn", type=float, default=1.0, help="seconds per turn, for the cost (default 1)")
    options = parser.parse_args()
    measure, name = {"cost": (cost, "sb3_cpu.csv"), "scales": (scales, "sb3_scales.csv")}[options.what]
    options.path = options.path or Path("results") / name
    measure(options)


if __name__ == "__main__":
    main()
