"""Tables on standard output."""

import re
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 140
"""Columns of the output where there is no terminal."""


def console() -> Console:
    """Return the console of standard output; without colours and of a fixed width if it is no terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=PLAIN_WIDTH)


def short(text: str) -> str:
    """Round a number with many digits to five; leave other text as it is."""
    is_long = len(text) > 8 and re.fullmatch(r"-?\d+(\.\d*)?(e-?\d+)?", text)
    return f"{float(text):.5g}" if is_long else text


def print_table(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows with the same keys, if there are any; without colours where there is no terminal."""
    if not rows:
        return
    table = Table(box=SIMPLE_HEAD)
    for name in rows[0]:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(short(cell)) for cell in row.values()))
    console().print(Text(title), table, sep="\n")
