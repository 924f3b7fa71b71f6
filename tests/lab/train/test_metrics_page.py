"""The reference of metrics has the columns that a run writes, in their order."""

import re
from collections import Counter
from pathlib import Path

import pytest

from popart.lab.files import read_table
from popart.lab.play.evaluate import reward_rows

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def columns(heading: str) -> list[str]:
    """Return the first cells of the first table below a heading; each must have a meaning."""
    text = PAGE.read_text("utf-8").split(heading, 1)[1]
    table = text[text.index("| column |") :].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.+) \|$", table, re.MULTILINE)
    assert len(rows) == len(table.splitlines()) - 2
    return [name for name, _ in rows]


def test_the_tables_of_an_evaluation_are_in_the_reference() -> None:
    assert columns("`popart evaluate` writes") == ["episode", "score"]
    assert columns("and `rewards.csv`") == list(reward_rows(Counter([10.0]))[0])


@pytest.mark.xdist_group("catch")
@pytest.mark.parametrize(("heading", "table"), [("# Metrics", "metrics"), ("## Evaluations", "evaluations")])
def test_every_column_is_in_the_reference(catch: Path, heading: str, table: str) -> None:
    assert columns(heading) == list(read_table(catch / f"{table}.csv")[0])
