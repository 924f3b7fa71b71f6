"""`popart` in processes of their own, to be stopped and killed."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import jax

from popart.lab.cli import main

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["popart.lab.train.training", "seaborn", "ale_py.vector_env"])
"""They begin where most imports, which take longer than all the rest, are done. Not gymnax, but what it
imports: it starts JAX's threads, and these are lost in a fork."""


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
    """It finds what JAX has compiled in tests, writes what it says to a file, and ends with the block."""
    compiled = jax.config.jax_compilation_cache_dir  # pyright: ignore
    process = PROCESSES.Process(target=_run, args=(arguments, said, compiled, cores))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
