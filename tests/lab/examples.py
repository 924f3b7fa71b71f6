"""Small training runs that tests share, and with them compiled programs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from popart.lab.dqn.networks import MLP
from popart.lab.train import run
from popart.lab.train.config import Train
from popart.lab.train.loop import Loop

CATCH = Train.of(game="catch", frames=12_000, num_envs=16, evaluate_every=6000, log_every=1500, device="cpu")
CATCH_NETWORK = MLP(50, 3)

ASTERIX = Train.of(
    game="asterix",
    frames=1200,
    num_envs=4,
    groups=4,
    replay_size=400,
    warm_up=100,
    exploration=100,
    copy_every=40,
    learning_rate=1e-3,
    beta=1e-2,
    evaluate_every=0,
    log_every=400,
    device="cpu",
)
"""Short episodes, many rewards, and something always moves."""


@contextmanager
def training(command: Train, out: Path) -> Iterator[Loop]:
    """Start or resume a training, and yield its loop before the first turn."""
    members = command.changed(out=out).members()
    with ExitStack() as stack:
        runs = [stack.enter_context(run.open_run(member)) for member in members]
        loop, _, _ = stack.enter_context(run.training(members, runs, Event()))
        yield loop
