"""`popart stream`: its settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from popart.lab.checks import check_grid, check_names, check_whole

STREAMS = {
    "steady": "steady",
    "prices": "prices that grow by 10⁴",
    "sensors": "sensors that change units",
    "drift": "a shift that drifts",
    "tails": "heavy tails",
    "spikes": "rare large targets",
    "turns": "sources that take turns",
}
"""The label of each stream; a function of the same name in `popart.lab.experiments.streams.data` makes it."""

METHODS = {
    "sgd": "none (plain network)",
    "once": "standardise once",
    "zscore": "running z-score",
    "symlog": "symlog",
    "hl_gauss": "HL-Gauss",
    "adaptive_bins": "HL-Gauss, normalised bins",
    "scale_only": "scale only",
    "art": "Art without Pop",
    "popart": "Pop-Art",
    "popart_limited": "Pop-Art, max_norm 3",
}
"""The label of each method; an entry of the same name in `popart.lab.experiments.streams.methods` has it."""

CONTROL = "steady"
"""The stream on which one learning rate is chosen for all streams."""

BETA = 0.01
"""The step size of the statistics that goes with this learning rate: the steady stream cannot tell how fast
to forget."""

CHOICES = {"steady": "chosen on the steady stream", "own": "chosen on the stream itself"}
"""Choices of learning rate and step size, always with the seeds for tuning."""

WINDOWS = 100
"""Windows of a stream in which errors are averaged. Errors in the first are not counted; standardise-once and
HL-Gauss are fitted to its targets."""

TUNING = range(1000, 1003)
"""Random seeds with which learning rates and step sizes are chosen; results have other seeds."""

CAP = 100.0
"""Largest error of a window: larger ones, and those after a prediction that is not finite, count as this."""

RATES = (1e-6, 1e-5, 1e-4, *(10 ** (k / 2) for k in range(-6, 1)))
BETAS = (0.001, BETA, 0.1, 0.3)

QUICK = {"samples": 4000, "seeds": 3, "rates": (0.001, 0.01, 0.1), "betas": (BETA,)}

_Rates = Annotated[
    tuple[float, ...],
    tyro.conf.arg(help_behavior_hint="(default: 10^-6, 10^-5, 10^-4, 10^-3, 10^-2.5, ..., 1)"),
]


@dataclass(frozen=True)
class Stream:
    """Regress on streams of targets whose size changes, one target after the other.

    Each target is predicted before it is learned. All methods have the same network, and each has the
    learning rate that is best for it on separate random seeds.
    """

    streams: tuple[str, ...] = tuple(STREAMS)
    """Streams to learn: steady (for comparison), prices (grow by 10⁴), sensors (change units by 1000), drift
    (of the shift), tails (heavy-tailed noise), spikes (rare large targets), turns (sources of different size
    that take turns)."""

    methods: tuple[str, ...] = tuple(METHODS)
    """Methods to compare, or all. sgd: no normalisation; once: mean and standard deviation of the first
    targets; zscore: those of all targets so far; symlog; hl_gauss: classification, with a support that is
    fitted to the first targets; adaptive_bins: the same with bins in normalised units; scale_only; art: Art
    without Pop; popart; popart_limited: Pop-Art with max_norm 3."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """The optimizer of all methods."""

    rates: _Rates = RATES
    """Learning rates to choose from."""

    betas: tuple[float, ...] = BETAS
    """Step sizes β of running statistics to choose from; 0.01 must be one of them."""

    samples: int = 20_000
    """Samples of each stream."""

    seeds: int = 10
    """Number of random seeds, each with its own data and initial weights."""

    quick: bool = False
    """Take a first look, with other defaults: 4000 samples, three random seeds, three learning rates and one
    step size."""

    seed: int = 0
    """The first random seed. Seeds 1000 to 1002 are those for tuning."""

    out: Path = Path("runs/stream")
    """Run folder. An interrupted run in it is resumed."""

    def __post_init__(self) -> None:
        for name, value in QUICK.items() if self.quick else ():
            if getattr(self, name) == getattr(Stream, name):
                object.__setattr__(self, name, value)
        check_names("streams", self.streams, STREAMS)
        check_names("methods", self.methods, (*METHODS, "all"))
        if "all" in self.methods:
            object.__setattr__(self, "methods", tuple(METHODS))
        check_grid("rates", self.rates)
        check_grid("betas", self.betas, 1)
        if BETA not in self.betas:
            raise ValueError(f"betas are {self.betas}; they must contain {BETA:g}")
        check_whole("samples", self.samples, 4 * WINDOWS, 4 * WINDOWS, most=2**24)
        check_whole("seeds", self.seeds, 1, most=TUNING.start)
        check_whole("seed", self.seed, 0, most=TUNING.start - self.seeds)

    def run(self) -> Path:
        from popart.lab.experiments.streams.run import run

        return run(self)
