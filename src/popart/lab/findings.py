"""The findings of a run as tables on standard output."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from popart.lab.files import read_table
from popart.lab.manifest import read_manifest

LONG = 20
"""Tables with more rows are not printed."""

PLAIN_WIDTH = 140
"""Columns of the output where there is no terminal."""


def print_findings(folder: Path) -> None:
    """Print the first table of a run, if it is not long, and its findings beside the paper's."""
    manifest = read_manifest(folder)
    heading, rows = _first_table(folder, manifest)
    if len(rows) <= LONG:
        print_table(f"{manifest['title']}: {heading}", rows)
    findings = [
        {
            "claim": finding["claim"],
            "the paper": finding["paper"],
            "here": finding["here"],
            "agrees": "yes" if finding["agrees"] else "no",
        }
        for finding in manifest.get("findings", [])
    ]
    print_table(f"{manifest['title']}: findings", findings)


def _first_table(folder: Path, manifest: Mapping[str, Any]) -> tuple[str, list[dict[str, str]]]:
    for shown in manifest.get("shown", []):
        if shown["kind"] == "table":
            return shown["heading"], read_table(folder / f"{shown['name']}.csv")
    return "", []


def short(text: str) -> str:
    """Round a number with many digits to five; leave other text as it is."""
    is_long = len(text) > 8 and re.fullmatch(r"-?\d+\.?\d*(e-?\d+)?", text)
    return f"{float(text):.5g}" if is_long else text


def print_table(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows with the same keys, if there are any; without colours where there is no terminal."""
    if not rows:
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    table = Table(box=SIMPLE_HEAD)
    for name in rows[0]:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(short(cell)) for cell in row.values()))
    console.print(Text(title), table, sep="\n")
