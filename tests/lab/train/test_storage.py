"""Checkpoints on disk: damage is named, and readers do not disturb a process that writes."""

import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from popart.lab.checks import LabError
from popart.lab.train.loading import load
from popart.lab.train.storage import Checkpoints, ReplacedError
from tests.lab.examples import CATCH, CATCH_NETWORK
from tests.lab.processes import PROCESSES

pytestmark = pytest.mark.xdist_group("catch")

MORE = CATCH.changed(frames=13_000)


@pytest.fixture
def copy(catch: Path, tmp_path: Path) -> Path:
    """A finished run, to be damaged."""
    return shutil.copytree(catch, tmp_path / "run")


def last(run: Path) -> Path:
    """Return the folder of the last checkpoint."""
    (folder,) = (run / "checkpoints" / "last").iterdir()
    return folder


def test_a_checkpoint_of_another_version_is_named(copy: Path) -> None:
    notes = last(copy) / "notes" / "metadata"
    notes.write_text(json.dumps({**json.loads(notes.read_text()), "format": 0}))
    with pytest.raises(LabError, match=r"another version \(format 0, not 2\)"):
        MORE.changed(out=copy).run()


def test_a_checkpoint_with_truncated_files_is_named(copy: Path) -> None:
    for file in (last(copy) / "agent").rglob("*"):
        if file.is_file() and file.stat().st_size > 1000:
            file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(LabError, match="is damaged or was written by another version"):
        MORE.changed(out=copy).run()


def test_a_checkpoint_without_one_of_its_parts_is_named(copy: Path) -> None:
    shutil.rmtree(last(copy) / "agent")
    with pytest.raises(LabError, match="is damaged"):
        MORE.changed(out=copy).run()


def test_a_reader_leaves_an_unfinished_checkpoint_alone(copy: Path) -> None:
    half = last(copy).parent / "999999.orbax-checkpoint-tmp"
    half.mkdir()
    load(copy, "last").policy(CATCH_NETWORK)
    assert half.exists()


def write(folder: Path, steps: range) -> None:
    """Write checkpoints one after the other, each with its number."""
    with closing(Checkpoints(folder)) as checkpoints:
        for step in steps:
            checkpoints.save(step, {"frames": step}, policy=np.arange(3))
            checkpoints.wait()


def test_a_checkpoint_replaced_while_it_is_read_is_not_mistaken_for_another(
    catch: Path, tmp_path: Path
) -> None:
    """While another process writes, the newest is read; and a policy is of the checkpoint that was found."""
    out, read = tmp_path / "run", list[int]()
    shutil.copytree(catch, out, ignore=shutil.ignore_patterns("last", "best"))
    folder = out / "checkpoints" / "last"
    write(folder, range(1, 2))
    first = load(out, "last")
    with ProcessPoolExecutor(1, PROCESSES) as another:
        writing = another.submit(write, folder, range(2, 60))
        while not writing.done():
            trained = load(out, "last")
            assert trained.frames == trained.step
            read.append(trained.step)
        writing.result()
    assert read == sorted(read)
    assert len(set(read)) > 2
    with pytest.raises(ReplacedError, match=r"last/1 was replaced while it was read; try again"):
        first.policy(CATCH_NETWORK)


def test_only_the_newest_checkpoint_is_kept_and_a_step_is_written_once(tmp_path: Path) -> None:
    with closing(Checkpoints(tmp_path)) as checkpoints:
        for step, frames in ((1, 10), (2, 20), (2, 30)):
            checkpoints.save(step, {"frames": frames}, policy=np.arange(3))
        checkpoints.wait()
        assert checkpoints.newest == 2
        assert checkpoints.notes()["frames"] == 20
        np.testing.assert_array_equal(checkpoints.arrays("policy", np.zeros(3, int)), np.arange(3))
    assert [path.name for path in tmp_path.iterdir()] == ["2"]
