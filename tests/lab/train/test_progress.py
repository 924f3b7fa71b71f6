"""The progress of a fleet: a table that fits the terminal, and a short sentence elsewhere."""

import io

import pytest
from rich.console import Console

from popart.lab.train.progress import FleetTable

ROWS = [(f"game_{i}-popart-0", f"{i}", "1.5", "2 M") for i in range(57)]


def drawn(rows: list[tuple[str, str, str, str]], width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(FleetTable(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 200, 300])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_a_table_of_57_members_fits_the_terminal(width: int, height: int) -> None:
    lines = drawn(ROWS, width, height)
    assert len(lines) <= height - 2
    assert max(map(len, lines)) <= width
    shown = sum(" ".join(lines).count(f"{name} ") for name, *_ in ROWS)
    hidden = 57 - shown
    assert (f"and {hidden} more" in lines[-1]) == (hidden > 0)


def test_all_members_are_shown_if_there_is_room() -> None:
    text = "\n".join(drawn(ROWS, 200, 60))
    assert all(name in text for name, *_ in ROWS)


def test_without_a_terminal_a_fleet_is_one_line() -> None:
    assert str(FleetTable(ROWS[:2])) == "scores: game_0-popart-0 0, game_1-popart-0 1"
    assert str(FleetTable(ROWS)).endswith("and 54 more")
