"""The plan of a training: which members share a program, the memory they need, and how long they take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from popart.lab.budget import RESERVE, announce, duration
from popart.lab.checks import LabError
from popart.lab.machine import cores, free_memory, free_on_device
from popart.lab.progress import quantity
from popart.lab.train.config import Member

AGENT_BYTES = 180e6
"""Bytes of an agent on Atari besides its replay buffer: four copies of the parameters, and updates."""

FRAMES_PER_CORE = 3900
"""Frames per second that a core emulates, measured over 57 games."""

UPDATES_PER_SECOND = {"gpu": 9000, "cpu": 10}
"""Updates per second on Atari, measured: of a fleet on an H200, and of each core of a CPU."""

SMALL_FRAMES_PER_SECOND = 2000
"""Frames per second of one agent on a small game, measured on two cores; sixteen do five times as many."""


@dataclass(frozen=True)
class Room:
    """Free memory: bytes where arrays are, the name of that memory, and bytes of the machine's memory."""

    arrays: int
    name: str
    host: int

    @classmethod
    def now(cls) -> "Room":
        on_device, host = free_on_device(), free_memory()
        return cls(host, "memory", host) if on_device is None else cls(on_device, "the GPU's memory", host)

    @property
    def on_gpu(self) -> bool:
        return self.name != "memory"


def member_bytes(member: Member, replay_size: int | None = None) -> int:
    """Return the bytes of one member's arrays."""
    observation = 84 * 84 if member.is_atari else 4 * 400
    agent = AGENT_BYTES if member.is_atari else 1e6
    return int((replay_size or member.replay_size) * (observation + 11) + agent)


def fleets(members: Sequence[Member], room: Room, at_once: int = 1) -> list[list[Member]]:
    """Group members that share a program into fleets that fit into memory, for `at_once` machines."""
    planned: list[list[Member]] = []
    programs = list(dict.fromkeys(member.program for member in members))
    for _, group in groupby(sorted(members, key=lambda m: programs.index(m.program)), lambda m: m.program):
        together = list(group)
        check_replay(together[0], room)
        busy = min(len(together), math.ceil(at_once / len(programs)))
        parts = max(busy, math.ceil(len(together) / capacity(together[0], room)))
        planned += [list(part) for part in np.array_split(np.array(together, object), parts)]
    return planned


def capacity(member: Member, room: Room) -> int:
    """Return the number of members like this one that fit into memory."""
    each = member_bytes(member)
    return (room.arrays - RESERVE - _copies(member, room) * each) // each


def _copies(member: Member, room: Room) -> int:
    """Return the number of copies of a replay buffer where arrays are, while a checkpoint is saved."""
    return int(member.save_replay and not room.on_gpu)


def check_replay(member: Member, room: Room) -> None:
    """Refuse a replay buffer that is too small for its environments, or too large for the memory."""
    size, stack = member.replay_size, 4 if member.is_atari else 1
    least = member.num_envs * (stack + 2)
    if size < least:
        raise LabError(
            f"replay_size is {size:,}, which is too little for num_envs {member.num_envs}: {stack + 2} "
            f"observations of each are {least:,}; give --replay-size {least} or more, or fewer --num-envs"
        )
    copies = 1 + _copies(member, room)
    _fit(member, room.name, copies, room.arrays)
    if member.save_replay and room.on_gpu:
        _fit(member, "memory", 1, room.host)


def _fit(member: Member, where: str, copies: int, free: int) -> None:
    needed, left = copies * member_bytes(member), max(0, free - RESERVE)
    if needed <= left:
        return
    per_observation = member_bytes(member, 1_000_000) - member_bytes(member, 999_999)
    most = max(0, int((left / copies - member_bytes(member, 1)) // per_observation // 1000 * 1000))
    hint = ", or more with --no-save-replay" if member.save_replay and where == "memory" else ""
    raise LabError(
        f"replay_size is {member.replay_size:,}, which takes {needed / 1e9:.1f} GB of {where}, and "
        f"{left / 1e9:.1f} GB are free; --replay-size {most} would fit{hint}"
    )


def expected_rate(fleet: Sequence[Member], room: Room, machine_cores: int | None = None) -> float:
    """Return the expected frames per second of a fleet, from rates that were measured."""
    available = machine_cores or cores()
    if not fleet[0].is_atari:
        return SMALL_FRAMES_PER_SECOND * len(fleet) ** 0.6
    emulators = FRAMES_PER_CORE * (fleet[0].threads or available)
    frames_per_update = 4 * fleet[0].schedule.steps_per_update
    if room.on_gpu:
        return min(emulators, frames_per_update * UPDATES_PER_SECOND["gpu"])
    return 1 / (1 / emulators + 1 / (frames_per_update * UPDATES_PER_SECOND["cpu"] * available))


def announce_one(member: Member, room: Room) -> None:
    """Announce the time of a single run, if it is long and the run is not finished."""
    announce(member.frames / expected_rate([member], room), member_bytes(member))


def show(planned: Sequence[Sequence[Member]], room: Room) -> None:
    """Print the plan on standard error."""
    table = Table(
        "fleet", "agent", "members", "envs", "memory", "frames/s", "time", title="Plan", box=SIMPLE_HEAD
    )
    for i, fleet in enumerate(planned):
        one, rate = fleet[0], expected_rate(fleet, room)
        games = list(dict.fromkeys(member.game for member in fleet))
        names = ", ".join(games[:4]) + (", ..." if len(games) > 4 else "")
        seconds = sum(member.frames for member in fleet) / rate
        table.add_row(
            f"{i + 1}",
            one.agent.agent,
            f"{len(fleet)} ({names})",
            f"{len(fleet)} × {one.num_envs}",
            f"{sum(map(member_bytes, fleet)) / 1e9:.1f} GB",
            f"~{quantity(rate)}",
            f"~{duration(seconds)}",
        )
    console = Console(stderr=True)
    console.print(table)
    _advise(planned, room, console)


def _advise(planned: Sequence[Sequence[Member]], room: Room, console: Console) -> None:
    """Name the replay size with which members would fit into one fleet instead of several."""
    by_program = {
        fleet[0].program: [f for f in planned if f[0].program == fleet[0].program] for fleet in planned
    }
    for split in (fleets for fleets in by_program.values() if len(fleets) > 1):
        member, number = split[0][0], sum(map(len, split))
        bytes_each = (room.arrays - RESERVE) / (number + _copies(member, room)) - member_bytes(member, 1)
        observation = member_bytes(member, 2) - member_bytes(member, 1)
        size = int(bytes_each // observation // 1000 * 1000)
        least = member.num_envs * 6
        hint = f"; --replay-size {size} would fit all {number} into one" if size >= least else ""
        console.print(
            f"{number} members with agent {member.agent.agent} do not fit into {room.name} "
            f"({room.arrays / 1e9:.0f} GB free) and are split into {len(split)} fleets{hint}."
        )
