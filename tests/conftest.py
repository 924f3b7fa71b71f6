import os
import signal

import hypothesis
import jax
import pytest

from tests.backends import BACKENDS, FLOAT32, Backend

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz", type=int, default=300, help="number of random inputs in each fuzz test")


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> int:
    """Return the number of random inputs of a test."""
    return int(request.config.getoption("--fuzz"))  # pyright: ignore[reportArgumentType]


def pytest_sessionstart() -> None:
    """Let test processes receive signals, even if pytest runs in the background and ignores them."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    """Cache the programs that JAX compiles, for all workers and for the next run.

    A program is found in the cache if it and its compiler are the same. The cache is that of pytest, which
    `--cache-clear` empties, or the folder in POPART_TEST_CACHE, which fresh clones may share.
    """
    if config.pluginmanager.has_plugin("cacheprovider"):
        assert config.cache is not None
        folder = os.environ.get("POPART_TEST_CACHE") or config.cache.mkdir("jax")
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture(params=BACKENDS, ids=lambda b: b.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every way to run the core."""
    return request.param


@pytest.fixture(params=[b for b in FLOAT32 if b.mode != "compile"], ids=lambda b: b.name)
def single(request: pytest.FixtureRequest) -> Backend:
    """Each module in single precision, where what compiles slowly has been shown to agree elsewhere."""
    return request.param


@pytest.fixture(params=FLOAT32, ids=lambda b: b.name)
def float32(request: pytest.FixtureRequest) -> Backend:
    """Each module in single precision, compiled where it is meant to be."""
    return request.param
