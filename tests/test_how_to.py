"""The code on the pages about testing and diagnosis runs as it stands, and prints what they show."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from popart.testing import assert_scale_invariant

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "how-to"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text("utf-8"), re.DOTALL)


def test_the_page_about_testing_passes_and_fails_as_it_says() -> None:
    names: dict[str, Any] = {}
    for code in blocks("test-your-agent.md", "python"):
        exec(code, names)
    names["test_scale_does_not_matter"]()
    with pytest.raises(AssertionError) as caught:
        assert_scale_invariant(names["train_with_huber_loss"], [16.0])
    (shown,) = blocks("test-your-agent.md", "text")
    numbers = r"-?\d+\.?\d*(?:e[+-]\d+)?"  # the last digits depend on the processor
    said = f"AssertionError: {caught.value}\n"
    assert re.sub(numbers, "#", said) == re.sub(numbers, "#", shown)
    assert "first at step 3:" in said


def test_the_page_about_diagnosis_shows_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("are-my-rewards-too-large.md", "python")
    exec(code, {})
    (shown,) = blocks("are-my-rewards-too-large.md", "text")
    assert capsys.readouterr().out == shown
    assert (tmp_path / "diagnose.png").stat().st_size > 10_000
    assert (ROOT / "docs" / "diagnose.png").exists()


def test_the_table_of_sizes_is_that_of_the_results() -> None:
    page = (PAGES / "are-my-rewards-too-large.md").read_text("utf-8")
    header, *rows = re.findall(r"^  \| (.*) \|$", page, re.MULTILINE)
    sizes = [float(x.replace(",", "")) for x in header.split(" | ")[1:]]
    with (ROOT / "results" / "target_size.csv").open() as file:
        table = {
            (row["optimizer"], float(row["size"])): float(row["relative error"])
            for row in csv.DictReader(file)
            if row["head"] == "linear"
        }
    assert len(rows) == 4
    for row in rows:
        optimizer, *errors = row.split(" | ")
        assert [float(x.replace("∞", "inf")) for x in errors] == [table[optimizer, size] for size in sizes]
