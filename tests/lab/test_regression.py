"""Section 3 at its full size: what the paper found is found here."""

import csv
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from popart.lab.cli import main
from popart.lab.regression.results import power
from popart.lab.runs import read_manifest, read_table

pytestmark = pytest.mark.xdist_group("regression")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three methods of the figure: 12,650 runs of 5,000 updates, in a process of their own."""
    out = tmp_path_factory.mktemp("full") / "run"
    command = [sys.executable, "-m", "popart.lab.cli", "regression", "--methods", "sgd", "art", "popart"]
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
    return out


def test_every_cell_is_measured(full: Path) -> None:
    cells = read_table(full / "grid.csv")
    assert len(cells) == 11 + 2 * 121
    assert len({(c["method"], c["alpha"], c["beta"]) for c in cells}) == len(cells)


def test_it_fits_into_memory(full: Path) -> None:
    assert full.exists()
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4 * 2**20  # kilobytes: 4 GiB


def test_the_chosen_step_sizes_are_the_papers(full: Path) -> None:
    sgd, art, popart = read_table(full / "chosen.csv")
    assert (sgd["alpha"], sgd["beta"], sgd["excess"]) == ("10^-3.5", "", "+0.0%")
    assert (popart["alpha"], popart["beta"], popart["excess"]) == ("10^-2.5", "10^-0.5", "+0.0%")
    assert (art["paper's alpha"], art["paper's beta"]) == ("10^-2.5", "10^-4")
    assert float(art["excess"].rstrip("%")) < 10


def test_popart_is_better_than_art_and_art_than_sgd(full: Path) -> None:
    intervals = [[float(x) for x in row["interval"].split(" to ")] for row in read_table(full / "chosen.csv")]
    sgd, art, popart = intervals
    assert popart[1] < art[0]
    assert art[1] < sgd[0]


def test_findings_say_what_agrees(full: Path) -> None:
    found = {finding["claim"]: finding for finding in read_manifest(full)["findings"]}
    assert found["The best step sizes of SGD"]["agrees"]
    assert found["The best step sizes of Pop-Art"]["agrees"]
    assert "worse" in found["The best step sizes of Art"]["here"]
    assert found["With SGD, Pop-Art learns better than Art, and Art better than no normalisation"]["agrees"]


def test_settings_that_diverge_are_told_as_such(full: Path) -> None:
    worst = [c for c in read_table(full / "grid.csv") if float(c["alpha"]) == 1 and c["method"] == "sgd"]
    assert [(c["rmse"], c["diverged"]) for c in worst] == [("inf", "1.0")]


def test_curves_have_a_spike_at_every_thousandth_sample(full: Path) -> None:
    with (full / "curves.csv").open() as file:
        median = {(r["method"], int(r["sample"])): float(r["median"]) for r in csv.DictReader(file)}
    assert len(median) == 3 * 500
    for method in ("sgd", "art", "popart"):
        for spike in range(1000, 5001, 1000):
            assert median[method, spike] > 10 * median[method, spike - 10]
    assert median["popart", 1500] < median["sgd", 1500] / 3


@pytest.mark.parametrize("methods", [["popart-percentiles"], ["art", "sgd-rmsprop"], ["popart"]])
def test_any_methods_and_any_grid_make_a_whole_run(tmp_path: Path, methods: list[str]) -> None:
    small = ["--alphas", "0.002", "2", "--betas", "0.3", "--samples", "20", "--repetitions", "1"]
    main(["regression", "--methods", *methods, *small, "--out", str(tmp_path / "run")])
    manifest = read_manifest(tmp_path / "run")
    assert manifest["finished"]
    assert "grids" in {shown["name"] for shown in manifest["shown"]}
    assert len(read_table(tmp_path / "run" / "chosen.csv")) == len(methods)


def test_a_grid_on_which_everything_diverges_makes_a_run_that_says_so(tmp_path: Path) -> None:
    small = ["--alphas", "1e30", "--betas", "0.3", "--samples", "20", "--repetitions", "3"]
    main(["regression", "--methods", "sgd", "art-extremes", *small, "--out", str(tmp_path / "run")])
    assert {row["diverged"] for row in read_table(tmp_path / "run" / "chosen.csv")} == {"100%"}


def test_step_sizes_are_written_as_the_paper_writes_them() -> None:
    assert [power(x) for x in (None, 1.0, 0.1, 10**-3.5, 0.002)] == ["", "1", "10^-1", "10^-3.5", "0.002"]
