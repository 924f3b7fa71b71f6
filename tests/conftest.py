import os

import hypothesis
import pytest

from tests.backends import BACKENDS, FLOAT32, Backend

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


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
