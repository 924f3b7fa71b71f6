"""Run folders with random damage: each loader returns what is there, or refuses it as the user's to correct.

`pytest tests/lab/test_fuzz.py --fuzz 20000` tries more of them.
"""

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from popart.lab.checks import LabError
from popart.lab.cli import main
from popart.lab.files import read_table
from popart.lab.manifest import own_command, read_manifest
from popart.lab.plot import redraw
from popart.lab.report import page
from popart.lab.schemas import TABLES, BestNotes, LastNotes
from popart.lab.train.config import Member
from popart.lab.train.loading import load
from popart.lab.train.storage import Checkpoints
from tests.lab.examples import CATCH_NETWORK

pytestmark = pytest.mark.xdist_group("catch")

NUMBERS = (True, -1, 0, 2**63, 10**400, 1e308, float("nan"))
TEXTS = ("", "x", "../x", "\x1b[2J", "\ud800", "9" * 5000)
NESTED = ([], {}, [[]], [None], {"": None}, {"a": {"b": []}}, ["x"] * 50)
VALUES = (None, *NUMBERS, *TEXTS, *NESTED)
BYTES = (b"\x00", b"\xff", b"\n", b",", b'"', b"nan", b"-1", b"1e999", b"\xe2\x82", b"\x1b[2J", b"{", b"]")


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut, insert, repeat or remove something."""
    at, length = rng.randrange(len(content) + 1), rng.randrange(1, 40)
    return rng.choice(
        (
            lambda: content[:at],
            lambda: content[:at] + rng.choice(BYTES) + content[at:],
            lambda: content[:at] + content[at + length :],
            lambda: content[:at] + content[max(0, at - length) :],
            lambda: content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :],
        )
    )()


def mutated_json(content: Any, rng: random.Random) -> Any:
    """Replace, remove or add something at a random place."""
    if isinstance(content, dict) and content and rng.random() < 0.9:
        name = rng.choice(list(content))
        if rng.random() < 0.2:
            return {k: v for k, v in content.items() if k != name}
        return content | {name: mutated_json(content[name], rng)}
    if isinstance(content, list) and content and rng.random() < 0.8:
        at = rng.randrange(len(content))
        return [*content[:at], mutated_json(content[at], rng), *content[at + 1 :]]
    return rng.choice(VALUES)


def damage(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    changed = mutated_bytes(content, rng)
    if path.suffix == ".json" and rng.random() < 0.7:
        with contextlib.suppress(ValueError):  # it is damaged already
            changed = json.dumps(mutated_json(json.loads(content), rng)).encode(errors="surrogatepass")
    path.write_bytes(changed)


@contextlib.contextmanager
def refusing() -> Any:
    """Allow an error that the user can correct: one line, which a terminal shows as it is."""
    said = ""
    try:
        yield
    except LabError as error:
        said = str(error)
    assert "\x1b" not in said


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper") / "run"
    main(["paper", "--out", str(out)])
    return out


def read_everything(run: Path) -> None:
    manifest = read_manifest(run)
    own_command(run, manifest)
    assert all(x.isidentifier() or "-" in x for x in (shown["name"] for shown in manifest.get("shown", [])))
    html = page.page(*page._read([run]))
    assert "\x1b" not in html
    assert html.count("<script>") == 1


def try_all(run: Path, copy: Path, names: list[str], number: int, read: Callable[[Path], object]) -> None:
    """Damage one file after the other, and read all; what was not damaged can be read."""
    read(run)
    for seed in range(number):
        rng = random.Random(seed)
        name = rng.choice(names)
        for _ in range(rng.choice((1, 1, 3))):
            damage(copy / name, rng)
        try:
            with refusing(), contextlib.redirect_stdout(io.StringIO()):
                read(copy)
        except Exception as error:
            error.add_note(f"seed {seed}, {name}")
            raise
        finally:
            shutil.copy(run / name, copy / name)


def test_damaged_manifests_tables_and_figures_are_read_or_refused(
    paper: Path, tmp_path: Path, fuzz: int
) -> None:
    copy = shutil.copytree(paper, tmp_path / "run")
    names = ["manifest.json", "manifest.json", "scores.csv", "figure_2.svg"]
    try_all(paper, copy, names, fuzz, read_everything)


def test_damaged_tables_are_drawn_or_refused(paper: Path, tmp_path: Path, fuzz: int) -> None:
    copy = shutil.copytree(paper, tmp_path / "run")
    try_all(paper, copy, ["scores.csv", "manifest.json"], max(10, fuzz // 30), redraw)


def test_damaged_training_runs_are_loaded_or_refused(catch: Path, tmp_path: Path, fuzz: int) -> None:
    """A policy that is loaded is the one that was saved."""
    copy = shutil.copytree(catch, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation-*"))
    expected = load(catch, "best")
    saved = expected.policy(CATCH_NETWORK)
    best = expected.checkpoint.path.relative_to(catch)

    def read(run: Path) -> None:
        trained = load(run, "best")
        assert isinstance(trained.settings, Member)
        same = trained.checkpoint.step == expected.checkpoint.step  # or the one before it
        if same and trained.settings.agent == expected.settings.agent:
            jax.tree.map(np.testing.assert_array_equal, trained.policy(CATCH_NETWORK), saved)
        for name, schema in TABLES["train"].items():
            read_table(run / f"{name}.csv", schema)

    names = ["manifest.json", "metrics.csv", "evaluations.csv", str(best)]
    try_all(catch, copy, names, max(20, fuzz // 2), read)


def test_notes_with_any_content_are_read_or_refused(tmp_path: Path, catch: Path, fuzz: int) -> None:
    store = Checkpoints(tmp_path)
    for schema, which in ((LastNotes, "last"), (BestNotes, "best")):
        notes = Checkpoints(catch / "checkpoints" / which).all()[0].notes(schema)
        for seed in range(fuzz // 2):
            wrong = mutated_json(notes, random.Random(seed))
            store.save(1, wrong if isinstance(wrong, dict) else {}, policy=np.zeros(1))
            with refusing():
                store.load({}, schema)
            store.all()[0].remove()
