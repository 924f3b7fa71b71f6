"""From the tables of a run to figures, tables and findings.

An analysis reads only what its run wrote, the tables and the manifest, so that `popart plot` can redraw any
finished run. Figures and captions of a run and those redrawn later come from the same code.
"""

import importlib
import json
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popart.lab.checks import LabError
from popart.lab.files import read_file, read_table, write_atomically, write_table
from popart.lab.machine import as_done, cores
from popart.lab.manifest import MANIFEST, read_manifest
from popart.lab.schemas import SETTINGS, check, table_schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ANALYSES = {
    "paper": "popart.lab.experiments.atari_scores.analysis",
    "regression": "popart.lab.experiments.regression.analysis",
    "histograms": "popart.lab.experiments.histograms.analysis",
    "scale": "popart.lab.experiments.reward_scale.analysis",
    "stream": "popart.lab.experiments.streams.analysis",
    "tasks": "popart.lab.experiments.several_games.analysis",
    "norms": "popart.lab.experiments.gradient_norms.analysis",
    "train": "popart.lab.train.analysis",
    "evaluate": "popart.lab.play.analysis",
    "campaign-report": "popart.lab.campaign.report.analysis",
}
"""The module whose function `analyse(page)` analyses each experiment, in the order of a report."""

FEW = 4
"""Fewer runs than this are analysed in this process: starting others would take longer."""

FAILED = 2
"""Exit status of a process of `analyse_all` if a run is damaged; its standard error says how."""


@dataclass(frozen=True)
class Shown:
    """A figure or a table to show: the name of its file, a heading and a caption."""

    name: str
    heading: str
    caption: str
    kind: str


@dataclass(frozen=True)
class Finding:
    """A claim, what the paper says of it, and the result of this run."""

    claim: str
    paper: str
    here: str
    agrees: bool


class Page:
    """The tables and settings of a run, and what an analysis makes of them: figures, tables, findings."""

    def __init__(self, folder: Path) -> None:
        manifest = read_manifest(folder)
        self.folder = folder
        self.experiment: str = manifest["experiment"]
        self.title: str = manifest["title"]
        self.settings: dict[str, Any] = manifest["settings"]
        if schema := SETTINGS.get(self.experiment):
            check(self.settings, schema, f"{folder / MANIFEST}, settings,")
        self.read = {MANIFEST: zlib.crc32(json.dumps(self.settings, sort_keys=True).encode())}
        """Checksums of the settings and of all tables that were read."""

        self._shown: list[Shown] = []
        self._findings: list[Finding] = []

    def table(self, name: str) -> list[dict[str, str]]:
        """Read the rows of NAME.csv; none if the run has no such table."""
        path = self.folder / f"{name}.csv"
        if not path.exists():
            return []
        rows = read_table(path, table_schema(self.experiment, name))
        self.read[path.name] = zlib.crc32(read_file(path))
        return rows

    def needed_table(self, name: str) -> list[dict[str, str]]:
        """Read the rows of NAME.csv; an error if the run has no such table."""
        rows = self.table(name)
        if not rows:
            raise LabError(
                f"{self.folder} has no {name}.csv, or one without rows, which its figures need; run its "
                "command again in another folder"
            )
        return rows

    def figure(self, name: str, heading: str, caption: str, figure: "Figure") -> None:
        """Write a figure as PNG and SVG, and show it."""
        from popart.lab.figures import images

        for suffix, content in images(figure):
            write_atomically(self.folder / f"{name}.{suffix}", content)
        self._show(name, heading, caption, "figure")

    def show_table(
        self, name: str, heading: str, caption: str, rows: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Show a table of the run, or write these rows as a new one and show it."""
        if rows is not None:
            write_table(self.folder / f"{name}.csv", rows)
        self._show(name, heading, caption, "table")

    def _show(self, name: str, heading: str, caption: str, kind: str) -> None:
        self._shown.append(Shown(name, heading, " ".join(caption.split()), kind))

    def find(self, claim: str, *, paper: str, here: str, agrees: bool) -> None:
        """Record a claim beside the result of this run; `paper` is empty if the paper does not make it."""
        self._findings.append(Finding(claim, paper, here, bool(agrees)))

    def results(self) -> dict[str, Any]:
        """Return entries for the manifest: checksums of what was read, figures, tables and findings."""
        shown, findings = (list(map(asdict, some)) for some in (self._shown, self._findings))
        return {"shown": shown, "findings": findings, "read": self.read}


def analyse(page: Page) -> Page:
    """Make the figures, tables and findings of a run from its tables."""
    if page.experiment not in ANALYSES:
        raise LabError(f"{page.folder} is a run of {page.experiment!r}, which has no analysis")
    importlib.import_module(ANALYSES[page.experiment]).analyse(page)
    return page


def analyse_all(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Analyse runs and return the results of each, with many runs in a process per core.

    Drawing takes a second or two and holds Python's lock, and a GPU waits for a fleet of 57 runs to be drawn.
    """
    if len(folders) < FEW:
        return [analyse(Page(folder)).results() for folder in folders]
    workers = min(cores(), len(folders))
    parts = [folders[i::workers] for i in range(workers)]
    found = {}
    for part, results in as_done(_in_a_process, parts):
        found |= dict(zip(part, results, strict=True))
    return [found[folder] for folder in folders]


def _in_a_process(folders: Sequence[Path]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", __name__, *map(str, folders)]
    # Only the parent handles Ctrl-C: files that the child writes are complete in any case.
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, process_group=0)
    if done.returncode == FAILED:
        raise LabError(done.stderr.strip())
    if done.returncode:
        raise RuntimeError(f"analysing {', '.join(map(str, folders))} failed:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    try:
        for folder in sys.argv[1:]:
            print(json.dumps(analyse(Page(Path(folder))).results()))
    except LabError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
