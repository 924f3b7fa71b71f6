"""One network for several tasks, with targets from thousandths to millions: statistics per task, in PyTorch.

    python examples/multitask.py [FOLDER] [--steps N]

Each row of a batch belongs to one task, and has a target for that task alone. A head with one output per
task and statistics per output normalises each task separately, so that all have the same weight in the
shared layers. Draws multitask.png and multitask.svg.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import torch
from torch import nn

import popart
from popart.torch import PopArt

SIZES = torch.tensor([1e-3, 1.0, 1e3, 1e6])
TASKS, STEPS, BATCH = len(SIZES), 2000, 64
HEADS = {"linear": "tab:red", "Pop-Art, one scale": "yellowgreen", "Pop-Art per task": "forestgreen"}


def targets(x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
    """Return the targets: a different function for each task, in different units."""
    return SIZES[task] * (torch.sin(3 * x[:, 0] + task) + x[:, 1] * (task - 1.5))


def make_head(name: str) -> nn.Linear | PopArt:
    art = popart.Moments(beta=1e-2)
    return nn.Linear(64, TASKS) if name == "linear" else PopArt(64, TASKS, art, per_output="per task" in name)


def learn(name: str, steps: int = STEPS, seed: int = 0) -> list[float]:
    """Train a network; return the error in each task, relative to the spread of its targets."""
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    head = make_head(name)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 3e-3)
    for _ in range(steps):
        x, task = 2 * torch.rand(BATCH, 2) - 1, torch.randint(TASKS, (BATCH,))
        y = targets(x, task)
        if isinstance(head, PopArt):
            y = head.update(y, index=task)
            prediction = head.normalized(body(x), index=task)
        else:
            prediction = head(body(x)).gather(1, task[:, None])[:, 0]
        optimizer.zero_grad()
        (prediction - y).square().mean().backward()
        optimizer.step()
    x = 2 * torch.rand(2000, 2) - 1
    y = torch.stack([targets(x, torch.full((len(x),), task)) for task in range(TASKS)], 1)
    with torch.no_grad():
        return ((head(body(x)) - y).square().mean(0).sqrt() / y.std(0)).tolist()


def draw(errors: dict[str, list[float]], folder: Path) -> None:
    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(3.4, 2.4), layout="constrained")
    for i, (name, values) in enumerate(errors.items()):
        places = [task + 0.27 * (i - 1) for task in range(TASKS)]
        axes.bar(places, values, 0.25, label=name, color=HEADS[name])
    axes.axhline(1, color="0.5", lw=0.8, ls=":")
    axes.set(yscale="log", xlabel="size of the task's targets", ylabel="RMSE / spread of the targets")
    axes.set_xticks(range(TASKS), [f"$10^{{{exponent}}}$" for exponent in (-3, 0, 3, 6)])
    axes.legend(frameon=False, fontsize=7, loc="upper right")
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        figure.savefig(folder / f"multitask.{kind}", dpi=200)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/multitask"), metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=STEPS, help="number of training batches")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    torch.set_num_threads(1)
    errors: dict[str, list[float]] = {}
    print(f"{'':>18}  error relative to the spread of targets of size {', '.join(f'{s:g}' for s in SIZES)}")
    for name in HEADS:
        errors[name] = learn(name, arguments.steps)
        print(f"{name:>18}:", "  ".join(f"{error:9.3g}" for error in errors[name]), flush=True)
    draw(errors, folder)
    print(f"drawn in {folder}")


if __name__ == "__main__":
    main()
