"""The command `popart` in processes of its own, to be interrupted and killed."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import jax

from popart.lab.cli import main

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["popart.lab.train.run", "seaborn", "ale_py.vector_env"])
"""Processes start with most imports done, which take longer than the rest. Not gymnax, but what it imports:
it starts JAX's threads, which are lost in a fork."""


def _run(arguments: Sequence[str], said: Path, compiled: str | None, cores: int | None) -> None:
    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    with said.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    jax.config.update("jax_compilation_cache_dir", compiled)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    main(list(arguments))


@contextmanager
def started(arguments: Sequence[str], said: Path, cores: int | None = None) -> Iterator[BaseProcess]:
    """Start a process that shares the tests' compilation cache; its output goes to `said`."""
    compiled = jax.config.jax_compilation_cache_dir  # pyright: ignore
    process = PROCESSES.Process(target=_run, args=(arguments, said, compiled, cores))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
