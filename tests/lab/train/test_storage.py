"""Checkpoints on disk: damage is noticed and named, and readers do not disturb a process that writes."""

import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from popart.lab.checks import LabError
from popart.lab.cli import main
from popart.lab.dqn.learner import Policy
from popart.lab.files import read_table
from popart.lab.train import storage
from popart.lab.train.loading import load
from popart.lab.train.metrics import TIMES
from popart.lab.train.storage import Checkpoints, ReplacedError
from tests.lab.examples import CATCH, CATCH_NETWORK, training
from tests.lab.legacy import as_orbax
from tests.lab.processes import PROCESSES

pytestmark = pytest.mark.xdist_group("catch")

MORE = CATCH.changed(frames=13_000)


@pytest.fixture
def copy(catch: Path, tmp_path: Path) -> Path:
    """A finished run, to be damaged."""
    return shutil.copytree(catch, tmp_path / "run")


def last(run: Path) -> Path:
    """Return the file of the last checkpoint."""
    newest = Checkpoints(run / "checkpoints" / "last").all()[0]
    assert newest.path.suffix == ".npz"
    return newest.path


def shapes(run: Path) -> dict[str, Any]:
    """Return the shapes of all parts of a checkpoint on catch."""
    with training(CATCH, run.parent / "shapes") as loop:
        found = loop.shapes(0)
    return found | {"policy": Policy(found["agent"].params, found["agent"].statistics)}


def without_times(run: Path) -> list[dict[str, str]]:
    return [{**row, **dict.fromkeys(TIMES, "")} for row in read_table(run / "metrics.csv")]


def flip_a_bit(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def inside(path: Path, part: str) -> int:
    """Return a place in the middle of the largest array of a part."""
    with zipfile.ZipFile(path) as file:
        largest = max((x for x in file.infolist() if x.filename.startswith(part)), key=lambda x: x.file_size)
    return largest.header_offset + largest.file_size // 2


@pytest.mark.parametrize("part", ["agent", "memory", "playing", "environments", "notes"])
def test_a_flipped_bit_is_noticed(copy: Path, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    for checkpoint in Checkpoints(copy / "checkpoints" / "last").all():
        flip_a_bit(checkpoint.path, inside(checkpoint.path, part))
    before = last(copy).read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(["train", "--game", "catch", "--num-envs", "16", "--evaluate-every", "6000", "--log-every",
              "1500", "--device", "cpu", "--frames", "13000", "--out", str(copy)])  # fmt: skip
    assert ended.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "popart:" in line]
    assert str(last(copy)) in line
    assert "is damaged" in line
    assert "move" in line
    assert last(copy).read_bytes() == before


def test_a_flipped_bit_of_the_policy_is_noticed_by_those_who_play(copy: Path) -> None:
    for checkpoint in Checkpoints(copy / "checkpoints" / "last").all():
        flip_a_bit(checkpoint.path, inside(checkpoint.path, "policy"))
    with pytest.raises(LabError, match="is damaged"):
        load(copy, "last")


def test_every_flipped_bit_is_noticed_or_without_consequence(tmp_path: Path) -> None:
    """In directories of a ZIP file there are times and permissions, which nobody reads."""
    store, array = Checkpoints(tmp_path), np.arange(1000, dtype=np.float32)
    store.save(1, {"frames": 7}, policy=array)
    path, rng = tmp_path / "1.npz", random.Random(0)
    whole = path.read_bytes()
    noticed = 0
    for at in [*range(300), *rng.sample(range(len(whole)), 300), *range(len(whole) - 300, len(whole))]:
        content = bytearray(whole)
        content[at] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        try:
            found = store.load({"policy": array})
        except LabError:
            noticed += 1
        else:
            assert found is not None
            assert found.notes["frames"] == 7
            np.testing.assert_array_equal(found.arrays["policy"], array)
    assert noticed > 500


def test_the_checkpoint_before_is_used_with_a_message_when_the_newest_is_damaged(
    copy: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And the run ends as if nothing had happened."""
    undisturbed = shutil.copytree(copy, tmp_path / "undisturbed")
    (before,) = Checkpoints(copy / "checkpoints" / "last").all()
    for run in (copy, undisturbed):
        MORE.changed(out=run).run()
    assert [each.step for each in Checkpoints(copy / "checkpoints" / "last").all()][1:] == [before.step]
    damaged = last(copy)
    flip_a_bit(damaged, inside(damaged, "agent"))
    for run in (copy, undisturbed):
        MORE.changed(out=run, frames=14_000).run()
    assert f"{damaged} is damaged" in (said := capsys.readouterr().err)
    assert f"The one before it is used: {before.path}" in said
    rows, others = map(without_times, (copy, undisturbed))
    assert rows[-1] == others[-1]
    policies = [load(run, "last").policy(CATCH_NETWORK) for run in (copy, undisturbed)]
    jax.tree.map(np.testing.assert_array_equal, *policies)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_a_link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


@pytest.mark.parametrize("damage", [truncate, empty, make_a_folder, make_a_link])
def test_damaged_files_are_one_line_and_status_2(
    copy: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for which in ("last", "best"):
        for checkpoint in Checkpoints(copy / "checkpoints" / which).all():
            damage(checkpoint.path)
    for command in (["evaluate"], ["watch"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, str(copy), "--device", "cpu"])
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "is damaged" in line
        assert "restore it from a copy" in line


def rewrite_notes(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write a checkpoint again with other notes, and with right checksums."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    notes = json.loads(parts["notes.json"])
    change(notes)
    with zipfile.ZipFile(path, "w") as file:
        for name, content in (parts | {"notes.json": json.dumps(notes).encode()}).items():
            file.writestr(name, content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda notes: notes.pop("frames"), "missing required field `frames`"),
        (lambda notes: notes["loop"].pop("counts"), "missing required field `counts`"),
        (lambda notes: notes["loop"]["counts"].update(turns="x"), r"at loop.counts.turns \(it is 'x'\)"),
        (lambda notes: notes["loop"]["counts"].update(turns=-1), r"at loop.counts.turns \(it is -1\)"),
        (lambda notes: notes["metrics"].update(updates=[1]), "at metrics.updates"),
        (lambda notes: notes.update(format=0), "format 0, not 3"),
    ],
)
def test_notes_are_checked_and_the_field_is_named(
    copy: Path, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    rewrite_notes(last(copy), change)
    with pytest.raises(LabError, match=words):
        MORE.changed(out=copy).run()


def test_notes_of_the_best_agent_need_its_score(copy: Path) -> None:
    for checkpoint in Checkpoints(copy / "checkpoints" / "best").all():
        rewrite_notes(checkpoint.path, lambda notes: notes.pop("score"))
    with pytest.raises(LabError, match=r"best.*missing required field `score`"):
        MORE.changed(out=copy).run()


def test_arrays_of_another_shape_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(1, {"frames": 1}, policy=np.zeros(3, np.float32))
    with zipfile.ZipFile(tmp_path / "1.npz") as file:
        parts = {name: file.read(name) for name in file.namelist()}
    header = parts["policy.npy"].replace(b"(3,), }" + 13 * b" ", b"(" + 13 * b"9" + b",), } ")
    assert len(header) == len(parts["policy.npy"]) != header.count(b"9")
    with zipfile.ZipFile(tmp_path / "1.npz", "w") as file:
        for name, content in (parts | {"policy.npy": header}).items():
            file.writestr(name, content)
    with pytest.raises(LabError, match="is damaged"):
        store.load({"policy": np.zeros(3, np.float32)})


@pytest.mark.parametrize("version", [1, 2])
def test_agents_of_earlier_versions_can_be_loaded(catch: Path, copy: Path, version: int) -> None:
    for which in ("best", "last"):
        as_orbax(copy / "checkpoints" / which, shapes(copy), version)
        found, expected = (load(run, which) for run in (copy, catch))
        assert (found.which, found.frames) == (expected.which, expected.frames)
        jax.tree.map(np.testing.assert_array_equal, *(x.policy(CATCH_NETWORK) for x in (found, expected)))


def test_a_run_with_checkpoints_of_the_version_before_is_resumed(copy: Path, tmp_path: Path) -> None:
    undisturbed = shutil.copytree(copy, tmp_path / "undisturbed")
    for which in ("best", "last"):
        as_orbax(copy / "checkpoints" / which, shapes(copy), 2)
    for run in (copy, undisturbed):
        MORE.changed(out=run).run()
    assert without_times(copy) == without_times(undisturbed)
    MORE.changed(out=copy, frames=14_000).run()
    assert all(x.path.is_file() for x in Checkpoints(copy / "checkpoints" / "last").all())


def test_a_damaged_checkpoint_of_an_earlier_version_is_one_line(
    copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    as_orbax(copy / "checkpoints" / "last", shapes(copy), 2)
    capfd.readouterr()
    for file in (copy / "checkpoints" / "last").rglob("*"):
        if file.is_file() and file.stat().st_size > 1000:
            file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(SystemExit):
        main(["evaluate", str(copy), "--which", "last", "--device", "cpu"])
    said = capfd.readouterr().err
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if "popart:" in line and "loading" not in line]
    assert "is damaged" in line


def test_a_run_folder_that_was_moved_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints" / "last")
    checkpoints.save(1, {"frames": 1}, policy=np.arange(3))
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(LabError, match=r"could not be written to .*No such file or directory"):
        checkpoints.save(2, {"frames": 2}, policy=np.arange(3))
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_a_reader_leaves_an_unfinished_checkpoint_alone(copy: Path) -> None:
    half = last(copy).parent / ".999999.npz.abc.tmp"
    half.touch()
    load(copy, "last").policy(CATCH_NETWORK)
    assert half.exists()


def write(folder: Path, steps: range) -> None:
    """Write checkpoints one after the other, each with its number."""
    for step in steps:
        Checkpoints(folder).save(step, {"frames": step}, policy=np.arange(3))


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
        writing = another.submit(write, folder, range(2, 200))
        while not writing.done():
            trained = load(out, "last")
            assert trained.frames == trained.checkpoint.step
            read.append(trained.frames)
        writing.result()
    assert read == sorted(read)
    assert len(set(read)) > 2
    with pytest.raises(ReplacedError, match=r"last/1.npz was replaced while it was read; try again"):
        first.policy(CATCH_NETWORK)


def test_the_two_newest_checkpoints_are_kept_and_a_step_is_written_once(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step, frames in ((1, 10), (2, 20), (3, 30), (3, 40)):
        checkpoints.save(step, {"frames": frames}, policy=np.arange(3))
    found = checkpoints.load({"policy": np.zeros(3, int)})
    assert found is not None
    assert found.notes["frames"] == 30
    np.testing.assert_array_equal(found.arrays["policy"], np.arange(3))
    assert {path.name for path in tmp_path.iterdir()} == {"2.npz", "3.npz"}


def test_of_large_checkpoints_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "LARGE", 1000)
    for step in (1, 2):
        Checkpoints(tmp_path).save(step, {"frames": step}, policy=np.zeros(1000))
    assert {path.name for path in tmp_path.iterdir()} == {"2.npz"}


def test_a_checkpoint_that_was_not_written_as_it_should_does_not_replace_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that stores something else than it was given."""
    store = Checkpoints(tmp_path)
    store.save(1, {"frames": 1}, policy=np.zeros(1000))
    written = storage._write

    def lie(path: Path, *content: Any) -> None:
        written(path, *content)
        flip_a_bit(path, 5000)

    monkeypatch.setattr(storage, "_write", lie)
    with pytest.raises(LabError, match=r"is not what was written.*the one before it is complete"):
        store.save(2, {"frames": 2}, policy=np.zeros(1000))
    assert os.listdir(tmp_path) == ["1.npz"]


def test_arrays_keep_their_bits_and_types(tmp_path: Path) -> None:
    tree = {"a": [np.float32(np.nan), np.array([], np.int8)], "b": (np.arange(6).reshape(2, 3).T, True)}
    store = Checkpoints(tmp_path)
    store.save(1, {"frames": 1}, policy=tree)
    like = jax.tree.map(np.asarray, tree)
    found = store.load({"policy": like})
    assert found is not None
    jax.tree.map(np.testing.assert_array_equal, found.arrays["policy"], like)
    assert jax.tree.map(lambda x: x.dtype, found.arrays["policy"]) == jax.tree.map(lambda x: x.dtype, like)
