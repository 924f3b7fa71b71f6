from pathlib import Path

import pytest

from tests.lab.campaign.examples import finished, started


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign that two processes trained. Tests that use it are in the xdist group campaign."""
    out = tmp_path_factory.mktemp("campaign") / "undisturbed"
    with started(out) as driver:
        finished(driver, out)
    return out
