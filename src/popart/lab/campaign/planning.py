"""The plan of a campaign: fleets that fit the machines given, their memory, and how long they take."""

import heapq
from collections.abc import Sequence

from popart.lab.budget import duration
from popart.lab.campaign.config import Campaign
from popart.lab.checks import LabError
from popart.lab.machine import cores, free_memory, gpu_memory
from popart.lab.progress import quantity
from popart.lab.tables import console, print_table
from popart.lab.train import plan
from popart.lab.train.config import Member
from popart.lab.train.plan import Room

GPU_SHARE = 0.75
"""Share of a GPU's memory that JAX uses by default."""


def room(campaign: Campaign) -> Room:
    """Return the memory of each machine."""
    memory = campaign.machines.memory
    given = None if memory is None else int(memory * 1e9)
    host = given or free_memory() // campaign.at_once
    if not campaign.gpus:
        return Room(host, "memory", host)
    if given is None and not gpu_memory():
        raise LabError(
            f"gpus is {campaign.gpus} and memory is not given, and JAX finds no GPU here; give --memory, the "
            "memory of each GPU in GB"
        )
    return Room(int(GPU_SHARE * given) if given else min(gpu_memory()), "the GPU's memory", host)


def cores_each(campaign: Campaign) -> int:
    """Return the cores for each fleet."""
    return campaign.machines.cores or max(1, cores() // campaign.at_once)


def fleets(campaign: Campaign, members: Sequence[Member]) -> list[list[Member]]:
    """Group members into fleets that fit into memory, with at least one fleet per worker."""
    return plan.fleets(members, room(campaign), campaign.at_once)


def seconds(campaign: Campaign, fleet: Sequence[Member]) -> float:
    """Return the expected time of a fleet, from rates that were measured."""
    rate = plan.expected_rate(fleet, room(campaign), cores_each(campaign))
    return sum(member.frames for member in fleet) / rate


def makespan(times: Sequence[float], at_once: int) -> float:
    """Return the time at which the last of several tasks ends, if each starts when a machine is free."""
    ends = [0.0] * at_once
    for each in times:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def show(campaign: Campaign, planned: Sequence[Sequence[Member]]) -> None:
    """Print the runs, fleet by fleet, with memory and time, and the time of all on the machines given."""
    members = [member for fleet in planned for member in fleet]
    times = [seconds(campaign, fleet) for fleet in planned]
    each = cores_each(campaign)
    print_table(
        _heading(members),
        [_row(i + 1, fleet, time) for i, (fleet, time) in enumerate(zip(planned, times, strict=True))],
    )
    where = _counted(campaign.gpus, "GPU") if campaign.gpus else "CPUs"
    total = duration(makespan(times, campaign.at_once))
    frames = quantity(float(sum(member.frames for member in members)))
    console().print(
        f"{_counted(len(members), 'run')}, {_counted(len(planned), 'fleet')}, {frames} frames: ~{total} on "
        f"{where} with {_counted(each, 'core')} for each fleet, {_counted(campaign.at_once, 'fleet')} at a "
        "time. Nothing was started.",
        highlight=False,
        soft_wrap=True,
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _heading(members: Sequence[Member]) -> str:
    kinds = [
        len({x(m) for m in members}) for x in (lambda m: m.game, lambda m: m.agent.agent, lambda m: m.seed)
    ]
    names = ("game", "agent", "seed")
    counted = " × ".join(map(_counted, kinds, names))
    return f"Plan: {_counted(len(members), 'run')} ({counted})"


def _row(number: int, fleet: Sequence[Member], time: float) -> dict[str, str]:
    games: dict[str, list[int]] = {}
    for member in fleet:
        games.setdefault(member.game, []).append(member.seed)
    runs = ", ".join(f"{game} {','.join(map(str, seeds))}" for game, seeds in games.items())
    return {
        "fleet": str(number),
        "agent": fleet[0].agent.agent,
        "runs": str(len(fleet)),
        "games and seeds": runs,
        "envs": f"{len(fleet)} × {fleet[0].num_envs}",
        "memory": f"{sum(map(plan.member_bytes, fleet)) / 1e9:.1f} GB",
        "frames/s": f"~{quantity(sum(member.frames for member in fleet) / time)}",
        "time": f"~{duration(time)}",
    }
