"""Memory and time of work: work that does not fit into memory is refused, long work is announced."""

from popart.lab.checks import LabError
from popart.lab.console import say
from popart.lab.machine import free_memory

RESERVE = 2**30
"""Bytes of memory that are reserved for everything else."""

LONG = 60
"""Work that takes longer than this many seconds is announced."""


def check_memory(setting: str, value: int, bytes_each: float) -> None:
    """Refuse a value that does not fit into memory, and name the largest that would.

    Args:
        setting: name of the setting.
        value: the value that was given.
        bytes_each: memory per unit of the value.
    """
    left = max(0, free_memory() - RESERVE)
    if value * bytes_each > left:
        raise LabError(
            f"{setting} is {value:,}, which takes {value * bytes_each / 1e9:,.1f} GB of memory, and "
            f"{left / 1e9:.1f} GB are free; {int(left // bytes_each):,} would fit"
        )


def announce(seconds: float, bytes_needed: float) -> None:
    """Say how long work will take, and how much memory, if it takes more than a minute."""
    if seconds > LONG:
        say(f"this takes about {duration(seconds)} and {max(bytes_needed / 1e9, 0.1):.1f} GB of memory")


def duration(seconds: float) -> str:
    """Return a time in readable form: 90 s, 15 min, 3.2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
