import pytest

from tests.backends import BACKENDS, FLOAT32, Backend


def one_worker_each(backends: list[Backend]) -> list[object]:
    """Tests of one backend share what it has run, so they go to the same worker."""
    return [pytest.param(b, marks=pytest.mark.xdist_group(b.name), id=b.name) for b in backends]


@pytest.fixture(params=one_worker_each(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every way to run the core."""
    return request.param


@pytest.fixture(params=one_worker_each(FLOAT32))
def float32(request: pytest.FixtureRequest) -> Backend:
    """Each module in single precision, compiled where it is meant to be."""
    return request.param
