"""Whether there is room for a replay, before it is taken."""

from popart.lab.checks import LabError
from popart.lab.machine import free_memory, free_on_device
from popart.lab.train import Train

RESERVE = 2**30
"""Bytes for all that is not the replay."""


def check_replay(settings: Train) -> None:
    """It must hold a few steps of each environment, and fit into memory."""
    number, size = settings.num_envs, settings.replay
    stacked = 4 if settings.is_atari else 1
    least = number * (stacked + 2)
    if size < least:
        raise LabError(
            f"replay is {size:,}, which is too little for num_envs {number}: {stacked + 2} observations of "
            f"each are {least:,}; give --replay {least} or more, or fewer --num-envs"
        )
    if settings.is_atari:
        fit(size, settings.save_replay, free_on_device(), free_memory())


def fit(size: int, saved: bool, on_device: int | None, in_memory: int) -> None:
    """Refuse a replay of so many observations for which so many bytes are not enough.

    It is where arrays are, and once more in the machine's memory while it is being saved.
    """
    here = [] if on_device is None else [("the GPU's memory", 1, on_device)]
    for where, copies, free in (*here, ("memory", (not here) + saved, in_memory)):
        each, left = copies * (84 * 84 + 11), max(0, free - RESERVE)
        if size * each > left:
            most = left // each // 1000 * 1000
            hint = ", or more with --no-save-replay" if saved and where == "memory" else ""
            raise LabError(
                f"replay is {size:,}, which takes {size * each / 1e9:.1f} GB of {where}, and "
                f"{left / 1e9:.1f} GB are free for it; --replay {most} would fit{hint}"
            )
