"""One page of what was run, beside what the paper says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Report:
    """Make one HTML page of finished runs: figures, tables, settings, and what agrees with the paper.

    The page needs no other file and no network.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = (Path("runs"),)
    """Folders of runs, or folders that hold some."""

    out: Path = Path("runs/report.html")
    """Where to write the page. A report that is there is replaced; nothing else is."""

    def run(self) -> Path:
        from popart.lab.report.page import write

        return write(self.runs, self.out)
