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

    plan shows the runs and the hours that they will take; start trains or resumes them; status shows the
    frames of each run so far; report compares the agents. Each command has its own --help.
    """

    SUBCOMMANDS: ClassVar[dict[str, str]] = SUBCOMMANDS
