from pathlib import Path

import pytest

from popart.lab.train.loop import Loop
from tests.lab.examples import ASTERIX, CATCH, training


@pytest.fixture(scope="session")
def catch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a small game, to be read. Tests that use it are in the xdist group catch."""
    return CATCH.changed(out=tmp_path_factory.mktemp("train") / "catch").run()


@pytest.fixture(scope="session")
def asterix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on Atari without updates, to be read. Tests that use it are in the xdist group atari."""
    out = tmp_path_factory.mktemp("train") / "asterix"
    return ASTERIX.changed(agent=("unclipped",), frames=64, sticky=0.25, out=out).run()


@pytest.fixture(scope="session")
def trained_loop(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    """The loop of a short training on Atari after its last turn, with some updates."""
    with training(ASTERIX.changed(frames=1500), tmp_path_factory.mktemp("train") / "loop") as loop:
        for _ in loop.turns():
            pass
    return loop
