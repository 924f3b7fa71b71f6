"""Cores, memory and devices of this machine, and threads on it."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psutil

from popart.lab.checks import LabError

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_done(f: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Yield each item with f of it, in the order in which they are done, with one thread per core.

    XLA releases Python's lock while it computes. A caller that stops early does not wait for the rest.
    """
    pool = ThreadPoolExecutor(cores())
    try:
        futures = {pool.submit(f, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def low_priority_threads() -> Iterator[None]:
    """Give threads that are started inside of this context a low priority, where the system allows it.

    The thread that drives a GPU has little to do, but must not wait for a core.
    """
    tasks = Path("/proc/self/task")
    before = set(os.listdir(tasks)) if tasks.exists() else None
    yield
    if before is not None:
        for thread in set(os.listdir(tasks)) - before:
            with suppress(OSError):  # it has ended
                now = os.getpriority(os.PRIO_PROCESS, int(thread))
                os.setpriority(os.PRIO_PROCESS, int(thread), max(now, 10))


@contextmanager
def switching_often() -> Iterator[None]:
    """Let Python's threads take turns 50 times as often, so that one with little to do does not wait."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 50)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def first_device() -> Any:
    """Return the device on which JAX computes."""
    import jax

    try:
        return jax.devices()[0]
    except (RuntimeError, AssertionError) as error:
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise LabError(
            f"JAX finds no device (JAX_PLATFORMS is {asked!r}); unset JAX_PLATFORMS, or set it to cpu"
        ) from error


def use_device(device: str) -> None:
    """Compute on a CPU or a GPU; with "auto", on a GPU if there is one."""
    import jax

    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    first_device()
    if device == "gpu":
        try:
            jax.devices("gpu")
        except RuntimeError:
            kinds = ", ".join(sorted({d.platform for d in jax.devices()}))
            raise LabError(
                f"device is 'gpu', but JAX finds none (it has: {kinds}); give --device cpu, or install "
                'JAX for it: pip install "popart-learn[cuda]"'
            ) from None


def free_on_device() -> int | None:
    """Return the free bytes of the GPU's memory; None if arrays are in the machine's memory."""
    device = first_device()
    stats = device.memory_stats() if device.platform != "cpu" else None
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats else None


@cache
def gpu_memory() -> tuple[int, ...]:
    """Return the bytes that JAX would take of each GPU of this machine; empty if it finds none.

    Another process asks, so that this one takes no memory of a GPU.
    """
    if importlib.util.find_spec("jax_plugins") is None:  # JAX was installed without support for a GPU
        return ()
    code = (
        "import jax; print(*(d.memory_stats()['bytes_limit'] for d in jax.devices() if d.platform == 'gpu'))"
    )
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    asked = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    return tuple(map(int, asked.stdout.split()))


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the free bytes of the memory of the machine, or of its container."""
    available = psutil.virtual_memory().available
    try:
        most, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (group / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return available
    files = sum(int(n) for name, n in map(str.split, lines) if name in ("active_file", "inactive_file"))
    return min(available, most - used + files)  # the cache of files is freed when memory is needed
