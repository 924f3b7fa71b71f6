"""Environments for members: a suite for a fleet to train in, or those of one game to evaluate in."""

from collections.abc import Sequence
from typing import Any

from popart.lab.envs.games import SMALL
from popart.lab.envs.timestep import Environments, Suite
from popart.lab.progress import progress
from popart.lab.train.config import Member


def suite(members: Sequence[Member]) -> Suite:
    """Start the environments of a fleet."""
    one, games = members[0], [member.game for member in members]
    if not one.is_atari:
        from popart.lab.envs.small import SmallSuite

        return SmallSuite(SMALL[one.game].name, len(games), one.num_envs)
    from popart.lab.envs.workers import AtariSuite

    with progress("starting environments", len(games) * one.num_envs, "environments") as advance:
        options = {"sticky": one.sticky, "undo_overflow": one.undo_overflow}
        return AtariSuite(games, one.groups, one.num_envs // one.groups, one.threads, advance, **options)


def environments(
    settings: Member, number: int, threads: int | None = None, *, training: bool, **options: Any
) -> Environments:
    """Start environments of a member's game in this process."""
    if not settings.is_atari:
        from popart.lab.envs.small import SmallGames

        return SmallGames(SMALL[settings.game].name, number)
    from popart.lab.envs.atari import Atari

    return Atari(
        settings.game,
        number,
        threads,
        sticky=settings.sticky,
        undo_overflow=settings.undo_overflow,
        life_loss=training,
        **options,
    )
