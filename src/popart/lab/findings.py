"""The findings of a run as tables on standard output."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from popart.lab.files import read_table
from popart.lab.manifest import read_manifest
from popart.lab.tables import print_table

LONG = 20
"""Number of rows above which a table is not printed."""


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
            "agrees": verdict(finding),
        }
        for finding in manifest.get("findings", [])
    ]
    print_table(f"{manifest['title']}: findings", findings)


def verdict(finding: Mapping[str, Any]) -> str:
    """Return whether a result agrees with the paper, or whether a claim that it does not make holds."""
    if finding["paper"]:
        return "yes" if finding["agrees"] else "no"
    return "holds" if finding["agrees"] else "does not hold"


def _first_table(folder: Path, manifest: Mapping[str, Any]) -> tuple[str, list[dict[str, str]]]:
    for shown in manifest.get("shown", []):
        if shown["kind"] == "table":
            return shown["heading"], read_table(folder / f"{shown['name']}.csv")
    return "", []
