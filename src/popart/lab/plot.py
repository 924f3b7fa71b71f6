"""`popart plot`: the figures and findings of finished runs again, from their tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from popart.lab.checks import LabError


@dataclass(frozen=True)
class Plot:
    """Redraw the figures and findings of finished runs from their tables. Nothing is run again."""

    runs: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)"),
    ]
    """Run folders."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("no run was given; give at least one run folder, as in: popart plot runs/scale")

    def run(self) -> tuple[Path, ...]:
        for folder in self.runs:
            redraw(folder)
        return self.runs


def redraw(folder: Path) -> None:
    """Analyse the tables of a finished run again.

    If tables were changed and no longer fit together, the error is one line. If the tables are those of the
    last analysis, an error is a bug of the analysis, and is raised as it is.
    """
    from popart.lab.analysis import Page, analyse
    from popart.lab.files import REPAIR
    from popart.lab.manifest import own_command, read_manifest, update_manifest

    manifest = read_manifest(folder)
    if manifest["finished"] is None:
        raise LabError(f"{folder} is not finished; finish it first with: {own_command(folder, manifest)}")
    page = Page(folder)
    try:
        results = analyse(page).results()
    except (KeyError, ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
        if page.read.items() <= manifest.get("read", {}).items():
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise LabError(f"the tables of {folder} do not fit together ({reason}); {REPAIR}") from error
    update_manifest(folder, **results)
