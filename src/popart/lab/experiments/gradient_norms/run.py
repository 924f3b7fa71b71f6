"""Train each agent on each game for a short time, and collect the norms of their gradients."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from popart.lab.experiments.gradient_norms.config import ROWS, Norms
from popart.lab.files import check_no_links, read_table
from popart.lab.machine import use_device
from popart.lab.manifest import MANIFEST, read_manifest
from popart.lab.runs import Run
from popart.lab.schemas import Metrics
from popart.lab.train.config import Member, Train
from popart.lab.train.metrics import NAME


def run(settings: Norms) -> Path:
    use_device(settings.device)
    with Run("norms", "Norms of gradients on Atari (Fig. 1b)", settings, ("device",)) as run:
        if not run.finished:
            train = training(settings)
            forget_unfinished(train.members())
            train.run()
            members = ((member.out, member.game, member.agent.agent) for member in train.members())
            run.write_table("gradients", [row for member in members for row in gradients(*member)])
            run.finish()
    return run.folder


def forget_unfinished(members: Sequence[Member]) -> None:
    """Remove interrupted fleets: emulators cannot be saved, and no table may depend on an interruption.

    Only files of `popart train` are removed, and nothing through a link.
    """
    started = [member for member in members if os.path.lexists(member.out / MANIFEST)]
    unfinished = {member.program for member in started if not read_manifest(member.out)["finished"]}
    for folder in (member.out for member in started if member.program in unfinished):
        check_no_links(folder)
        for name in ("checkpoints", "tensorboard"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in (f"{NAME}.csv", MANIFEST):
            (folder / name).unlink(missing_ok=True)


def training(settings: Norms) -> Train:
    """Return the command that trains all agents, with the same learning rate for all."""
    steps = settings.frames - 4 * settings.warm_up
    return Train.of(
        game=settings.games,
        agent=settings.agents,
        seed=settings.seed,
        frames=settings.frames,
        num_envs=settings.num_envs,
        replay_size=max(settings.frames // 4, 6 * settings.num_envs),
        warm_up=settings.warm_up,
        exploration=steps // 4,
        copy_every=settings.copy_every,
        learning_rate=1e-4,
        evaluate_every=0,
        log_every=steps // ROWS,
        save_replay=False,
        device=settings.device,
        out=settings.out / "agents",
    )


def gradients(folder: Path, game: str, agent: str) -> list[dict[str, str]]:
    """Return the norms of gradients of a training run, from its metrics."""
    names = ("updates", "gradient_norm")
    rows = [row for row in read_table(folder / f"{NAME}.csv", Metrics) if row["gradient_norm"]]
    return [{"game": game, "agent": agent, **{name: row[name] for name in names}} for row in rows]
