"""`popart norms`: Fig. 1b from the metrics of short training runs."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from popart.lab.cli import main
from popart.lab.experiments.gradient_norms.analysis import spread
from popart.lab.experiments.gradient_norms.config import Norms
from popart.lab.experiments.gradient_norms.run import training
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest
from popart.lab.train.config import Train
from tests.lab import processes

RESULTS = Path(__file__).parents[3] / "results" / "lab" / "norms"


def test_the_spread_is_the_range_of_95_percent_in_orders_of_magnitude() -> None:
    assert spread([1.0, 10.0, 1000.0]) == pytest.approx(2.9 - 0.05)
    assert spread(list(10.0 ** np.linspace(0, 4, 1001))) == pytest.approx(0.95 * 4)


def test_all_agents_train_with_the_same_learning_rate_in_folders_of_their_own() -> None:
    members = training(Norms(out=Path("run"))).members()
    assert len(members) == len({member.out for member in members}) == 24
    assert {member.agent.learning_rate for member in members} == {1e-4}
    assert all(Path("run") in member.out.parents for member in members)


def test_one_game_and_one_agent_have_a_folder_apart_from_the_run() -> None:
    (member,) = training(Norms(games=("pong",), agents=("popart",), out=Path("run"))).members()
    assert member.out != Path("run")
    assert Path("run") in member.out.parents


@pytest.mark.slow
def test_the_command_trains_and_draws(tmp_path: Path) -> None:
    """Two games and one agent, as a fleet, for as short as the command allows; the same if interrupted."""
    sizes = ["--frames", "1400", "--num-envs", "4", "--warm-up", "20", "--copy-every", "40"]
    games = ["--games", "boxing", "asterix", "--agents", "popart"]
    main(["norms", *games, *sizes, "--device", "cpu", "--out", str(tmp_path / "run")])
    rows = read_table(tmp_path / "run" / "gradients.csv")
    assert {row["game"] for row in rows} == {"boxing", "asterix"}
    assert all(float(row["gradient_norm"]) > 0 for row in rows)
    assert (tmp_path / "run" / "figure_1b.png").stat().st_size > 10_000
    before = (tmp_path / "run" / "gradients.csv").read_bytes()
    main(["norms", *games, *sizes, "--device", "cpu", "--out", str(tmp_path / "run")])
    assert (tmp_path / "run" / "gradients.csv").read_bytes() == before
    out, said = tmp_path / "interrupted", tmp_path / "said"
    arguments = ["norms", *games, *sizes, "--device", "cpu", "--out", str(out)]
    with processes.started(arguments, said) as process:
        while not (out / "agents" / "boxing-popart-0" / "metrics.csv").exists():
            assert process.is_alive(), said.read_text("utf-8")
            time.sleep(0.01)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        process.join()
    assert process.exitcode == 130
    assert read_manifest(out)["finished"] is None
    with processes.started(arguments, said) as process:
        process.join()
    assert (out / "gradients.csv").read_bytes() == before


def test_the_command_collects_and_draws_gradients_of_training_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the metrics of earlier runs instead of training."""

    def copy_metrics(train: Train) -> Path:
        for member in train.members():
            member.out.mkdir(parents=True)
            shutil.copy(RESULTS / f"{member.game}-{member.agent.agent}" / "metrics.csv", member.out)
        return tmp_path

    monkeypatch.setattr(Train, "run", copy_metrics)
    main(["norms", "--device", "cpu", "--out", str(tmp_path / "run")])
    for name in ("gradients.csv", "norms.csv"):
        assert sorted(read_table(tmp_path / "run" / name), key=str) == sorted(
            read_table(RESULTS / name), key=str
        )
    manifest = read_manifest(tmp_path / "run")
    assert [shown["name"] for shown in manifest["shown"]] == ["figure_1b", "norms"]
    assert [finding["agrees"] for finding in manifest["findings"]] == [True]
