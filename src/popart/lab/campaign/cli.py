"""The subcommands of `popart campaign`."""

from dataclasses import dataclass
from typing import ClassVar

SUBCOMMANDS = {
    "plan": "popart.lab.campaign.config:Plan",
    "start": "popart.lab.campaign.config:Start",
    "status": "popart.lab.campaign.status:Status",
    "report": "popart.lab.campaign.report:Report",
    "work": "popart.lab.campaign.config:Work",
}


@dataclass(frozen=True)
class Campaign:
    """Train many games, agents and seeds: on this machine, on a Ray cluster, or under SLURM.

    The command plan shows the runs and the hours they take, start trains or resumes them, status shows how
    many frames each has, and report compares the agents. Each has a --help of its own.
    """

    SUBCOMMANDS: ClassVar[dict[str, str]] = SUBCOMMANDS
