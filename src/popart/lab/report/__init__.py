"""`popart report`: one HTML page of finished runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Report:
    """Write one HTML page of runs: figures, tables, settings, and the findings beside the paper's.

    The page needs no other file and no network.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = (Path("runs"),)
    """Run folders, or folders that contain run folders."""

    out: Path = Path("runs/report.html")
    """HTML file of the page. An existing report is replaced; any other existing file is refused."""

    def run(self) -> Path:
        from popart.lab.report.page import write

        return write(self.runs, self.out)
