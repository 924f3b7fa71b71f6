"""Returns of the single-file agents for rewards of different sizes, with and without Pop-Art.

Each of examples/ppo.py, dqn.py, sac.py and ppo_jax.py is trained with its own settings on rewards × 10⁻⁴, 1
and 10⁴, with three random seeds. Returns are means of greedy episodes after training, in unscaled rewards.
The table is written row by row. Run the same command again to resume.

    python -m benchmarks.agents [--agents ppo sac] [--path results/agents.csv] [--docs docs]

With `--agents`, only these are trained. When all rows are there, the manifest is written, docs/agents.png is
drawn, and the tables in docs/how-to are filled in.
"""

import argparse
import csv
import importlib
import itertools
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.tables import publish
from popart.lab.figures import COLOURS, images, letter, styled, subplots

AGENTS = {
    "ppo": "PPO, CartPole",
    "dqn": "Double DQN, CartPole",
    "sac": "SAC, Pendulum",
    "ppo_jax": "PPO in JAX, CartPole",
}
HEADS = {"linear": ("plain", COLOURS["sgd"]), "popart": ("Pop-Art", COLOURS["popart"])}
SCALES = {1e-4: "10⁻⁴", 1.0: "1", 1e4: "10⁴"}
SEEDS = (0, 1, 2)
HEADER = ["agent", "head", "reward scale", "seed", "steps", "return", "seconds"]

Row = list[str]
Run = tuple[str, str, float, int]


def runs() -> list[Run]:
    return list(itertools.product(AGENTS, HEADS, SCALES, SEEDS))


def measured(agent: str, head: str, scale: float, seed: int) -> Row:
    """Train an agent and return its row; seconds are those of the process, also if others share the cores."""
    example: Any = importlib.import_module(f"examples.{agent}")
    before = time.process_time()
    found = float(example.evaluate(example.train(head, scale, seed), seed))
    seconds = time.process_time() - before
    return [agent, head, f"{scale:g}", str(seed), str(example.STEPS), f"{found:.1f}", f"{seconds:.1f}"]


def read(path: Path) -> dict[Run, Row]:
    """Return the rows of the table that are of complete runs."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == len(HEADER) and row != HEADER]
    return {(row[0], row[1], float(row[2]), int(row[3])): row for row in rows}


def append(path: Path, row: Row) -> None:
    """Append a row to the table, on a line of its own also after a row that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_off = path.exists() and not path.read_text().endswith("\n")
    lines = [row] if path.exists() else [HEADER, row]
    with path.open("a", newline="") as file:
        file.write("\n" * cut_off)
        csv.writer(file, lineterminator="\n").writerows(lines)


def table(agent: str, found: dict[Run, Row]) -> str:
    """Return the mean return of each scale and head, and those of the seeds, as a table for the pages."""

    def cell(head: str, scale: float) -> str:
        each = [float(found[agent, head, scale, seed][5]) for seed in SEEDS]
        return f"{np.mean(each):.0f} ({', '.join(f'{x:.0f}' for x in each)})"

    rows = [["rewards ×", *(label for label, _ in HEADS.values())], ["---"] * (1 + len(HEADS))]
    rows += [[name, *(cell(head, scale) for head in HEADS)] for scale, name in SCALES.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def fill_in(page: Path, found: dict[Run, Row]) -> None:
    """Write the tables of a page, each between its comment and the comment after it."""

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{table(match[2], found)}\n\n{match[3]}"

    pattern = r"(<!-- table of (\w+) -->).*?(<!-- end of table -->)"
    page.write_text(re.sub(pattern, filled, page.read_text(), flags=re.DOTALL))


def panel(axes: Axes, agent: str, found: dict[Run, Row]) -> None:
    for head, (label, colour) in HEADS.items():
        each = np.array([[float(found[agent, head, c, seed][5]) for seed in SEEDS] for c in SCALES])
        axes.plot([*SCALES], each.mean(1), color=colour, label=label)
        axes.plot([*SCALES], each, "o", color=colour, markersize=3, alpha=0.6)
    axes.set(xscale="log", xticks=[*SCALES], xlabel="rewards ×")
    axes.minorticks_off()
    axes.grid()
    letter(axes, AGENTS[agent])


@styled
def figure(found: dict[Run, Row]) -> Figure:
    """Draw returns against the scale of rewards: means as lines, seeds as dots."""
    drawn, grid = subplots(2, 2, height=4.4)
    for axes, agent in zip(grid.flat, AGENTS, strict=True):
        panel(axes, agent, found)
    for axes in grid[:, 0]:
        axes.set(ylabel="return, unscaled")
    grid[0, 0].legend(loc="lower right")
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS), help="agents to train")
    parser.add_argument("--path", type=Path, default=Path("results/agents.csv"))
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the figure and the pages")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for run in runs():
        if run[0] in options.agents and run not in read(options.path):
            append(options.path, measured(*run))
    found = read(options.path)
    missing = [run for run in runs() if run not in found]
    if missing:
        print(f"{len(missing)} of {len(runs())} runs are missing; run the same command without --agents")
        return
    rows = [found[run] for run in runs()]
    publish(options.path, HEADER, rows, "agents", "CPU", sections=2, seeds=len(SEEDS))
    (options.docs / "agents.png").write_bytes(dict(images(figure(found)))["png"])
    for page in (options.docs / "how-to").glob("*.md"):
        fill_in(page, found)
    print(options.docs / "agents.png")


if __name__ == "__main__":
    main()
