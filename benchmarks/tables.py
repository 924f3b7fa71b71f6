"""How a benchmark leaves its table: as CSV with a manifest beside it, and on the terminal."""

import csv
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import torch
from rich.console import Console
from rich.table import Table


def publish(
    path: Path,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    benchmark: str,
    device: str,
    **settings: Any,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
    versions = {"jax": jax.__version__, "torch": torch.__version__, "python": platform.python_version()}
    manifest = {"command": f"python -m benchmarks.{benchmark}", "device": device, **settings, **versions}
    path.with_suffix(".json").write_text(json.dumps(manifest, indent=2) + "\n")
    told = ", ".join(f"{name} {value}" for name, value in (settings | versions).items())
    table = Table(*header, caption=f"{device}; {told}; written to {path}")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)
