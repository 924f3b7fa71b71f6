"""The options of `popart campaign`: runs, machines, and engines."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from popart.lab.checks import LabError, check_names, check_positive, check_whole
from popart.lab.envs.games import ATARI, SMALL
from popart.lab.train.config import (
    AgentOptions,
    EnvironmentOptions,
    RecordOptions,
    ScheduleOptions,
    Train,
    check_agents,
)


def _hint(kind: str, text: str) -> Any:
    return tyro.conf.arg(help_behavior_hint=f"(default: {text})", metavar=kind)


@dataclass(frozen=True)
class MachineOptions:
    """The machines that train, all of one kind. Runs are grouped into fleets that fit them."""

    workers: Annotated[int | None, _hint("INT", "the number of --gpus, otherwise 1")] = None
    """Number of fleets that train at the same time: processes of this machine, or machines of a cluster."""

    gpus: Annotated[int | None, _hint("INT", "those of this machine; 0 with --ray or --slurm")] = None
    """Number of GPUs of all machines together; each fleet uses one. 0: fleets train on CPUs."""

    cores: Annotated[int | None, _hint("INT", "those of this machine, shared by --workers")] = None
    """Number of CPU cores for each fleet."""

    memory: Annotated[
        float | None, _hint("FLOAT", "that of a GPU here; without GPUs the free memory, shared by --workers")
    ] = None
    """Memory for each fleet in GB: that of a GPU, or without GPUs that of the machine."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("gpus", 0), ("cores", 1)):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least)
        if self.memory is not None:
            check_positive("memory", self.memory)


@dataclass(frozen=True)
class Campaign:
    """The runs of a campaign, and the machines that train them."""

    games: tuple[str, ...] = ("all",)
    """One or more of the paper's 57 games; all for all 57; or small games, as in popart train."""

    agents: tuple[str, ...] = ("all",)
    """One or more of clipped, unclipped and popart, or all."""

    seeds: int = 1
    """Number of random seeds: 0, 1, and so on."""

    frames: Annotated[int | None, _hint("INT", "200,000,000; 50,000 for a small game")] = None
    """Game frames of each run. More frames continue a finished campaign."""

    out: Path = Path("runs/campaign")
    """Folder of the campaign, which holds the run folders. All machines must see it at this path."""

    machines: MachineOptions = field(default_factory=MachineOptions)
    environment: EnvironmentOptions = field(default_factory=EnvironmentOptions)
    learning: AgentOptions = field(default_factory=AgentOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    record: RecordOptions = field(default_factory=RecordOptions)

    def __post_init__(self) -> None:
        if self.games != ("all",):
            check_names("games", self.games, (*ATARI, *SMALL))
        check_agents("agents", self.agents)
        check_whole("seeds", self.seeds, 1)
        self._train("auto")

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all machines together."""
        from popart.lab.machine import gpu_memory

        return len(gpu_memory()) if self.machines.gpus is None else self.machines.gpus

    @property
    def at_once(self) -> int:
        """Return the number of fleets that train at the same time."""
        return self.machines.workers or self.gpus or 1

    def train(self) -> Train:
        """Return the options of `popart train` for all runs."""
        return self._train("gpu" if self.gpus else "cpu")

    def _train(self, device: Literal["auto", "cpu", "gpu"]) -> Train:
        return Train(
            self.games,
            self.agents,
            tuple(range(self.seeds)),
            self.frames,
            self.environment,
            self.learning,
            self.schedule,
            self.record,
            device=device,
            out=self.out,
        )


@tyro.conf.configure(tyro.conf.OmitArgPrefixes)
@dataclass(frozen=True)
class Plan(Campaign):
    """Show the runs and fleets of a campaign, with memory and time. Nothing is started or written."""

    def run(self) -> tuple[Path, ...]:
        from popart.lab.campaign.planning import fleets, show

        show(self, fleets(self, self.train().members()))
        return ()


@tyro.conf.configure(tyro.conf.OmitArgPrefixes)
@dataclass(frozen=True)
class Start(Campaign):
    """Train all runs of a campaign, or resume it: here, on a Ray cluster, or under SLURM.

    Each game, agent and seed has its own run folder, as with popart train. Ctrl-C saves, and the same command
    resumes, also after a crash, on another engine or on other machines. More --games, --agents or --seeds
    extend a campaign.
    """

    ray: Annotated[str | None, _hint("ADDRESS", "none")] = None
    """Train on the Ray cluster at this address (HOST:PORT, or auto)."""

    slurm: bool = False
    """Write an array job for SLURM, and submit it if sbatch is installed."""

    sbatch: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: none)")] = ()
    """Further options of sbatch for --slurm, such as partition=gpu time=24:00:00."""

    tries: int = 3
    """Attempts at a fleet without a new checkpoint, after which it is given up."""

    retry_after: float = 30.0
    """Seconds until a failed fleet is tried again; twice as long after each further failure."""

    accept_versions: bool = False
    """Continue a campaign that was started with other versions of popart, JAX or others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("tries", self.tries, 1)
        check_positive("retry_after", self.retry_after)
        if self.ray is not None and self.slurm:
            raise ValueError("--ray and --slurm are both given; give one of them, or none to train here")
        if self.sbatch and not self.slurm:
            raise ValueError(f"sbatch is {' '.join(self.sbatch)!r}, which needs --slurm")

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all machines together; those of a cluster are not known here."""
        return super().gpus if self.engine == "here" else self.machines.gpus or 0

    @property
    def engine(self) -> Literal["here", "ray", "slurm"]:
        return "slurm" if self.slurm else "here" if self.ray is None else "ray"

    def run(self) -> Path:
        from popart.lab.campaign.run import run

        return run(self)


BUSY = 69
"""Exit status of `popart campaign work` if another process trains the fleet (EX_UNAVAILABLE)."""

AGAIN = 75
"""Exit status of `popart campaign work` if the fleet should be tried again later (EX_TEMPFAIL)."""

REFUSED = 78
"""Exit status of `popart campaign work` if this machine has other versions than the campaign (EX_CONFIG)."""

_STATUS = {"busy": BUSY, "again": AGAIN, "refused": REFUSED}


@dataclass(frozen=True)
class Work:
    """Train one fleet of a campaign in this process, as array tasks of SLURM do.

    The exit status is 0 if the fleet is finished, 2 if it failed for good, 69 if another process trains it,
    75 if it should be tried again, 78 if this machine has other versions than the campaign.
    """

    folder: tyro.conf.Positional[Path]
    """Folder of the campaign."""

    fleet: int
    """Number of the fleet, from 1."""

    tries: int = 3
    """Attempts without a new checkpoint, after which the fleet is given up."""

    parent: int | None = None
    """Identifier of the process that started this one. When it dies, this one saves and ends."""

    def __post_init__(self) -> None:
        check_whole("fleet", self.fleet, 1)
        check_whole("tries", self.tries, 1)

    def run(self) -> tuple[Path, ...]:
        from popart.lab.campaign.work import attempt

        result = attempt(self.folder, self.fleet, self.tries, self.parent)
        if result.status == "failed":
            raise LabError(result.message)
        if result.status != "finished":
            print(f"popart: {result.message}", flush=True)
            raise SystemExit(_STATUS[result.status])
        return (self.folder,)
