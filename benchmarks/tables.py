"""Tables of benchmarks: as CSV with a manifest beside it, and on the terminal."""

import csv
import functools
import importlib.util
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import torch
from rich.console import Console
from rich.table import Table


@functools.cache
def installed(module: str, name: str) -> tuple[str, ...]:
    """Return the name of a peer if its module is installed, and say so once if it is not."""
    if importlib.util.find_spec(module):
        return (name,)
    print(f"{module} is not installed: left out")
    return ()


def publish(
    path: Path,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    benchmark: str,
    device: str,
    *,
    sections: int = 0,
    **settings: Any,
) -> None:
    """Write rows to a CSV file and print them in sections: rows that share their first `sections` cells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
    versions = {"jax": jax.__version__, "torch": torch.__version__, "python": platform.python_version()}
    manifest = {"command": f"python -m benchmarks.{benchmark}", "device": device, **settings, **versions}
    path.with_suffix(".json").write_text(json.dumps(manifest, indent=2) + "\n")
    told = ", ".join(f"{name} {value}" for name, value in (settings | versions).items())
    table = Table(*header, caption=f"{device}; {told}; written to {path}")
    for row, following in zip(rows, [*rows[1:], ()], strict=True):
        table.add_row(*row, end_section=row[:sections] != following[:sections])
    Console(width=150).print(table)
