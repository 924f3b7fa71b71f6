"""`popart diagnose`: are my targets too large?"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from popart.lab.checks import LabError, check_between, check_whole

if TYPE_CHECKING:
    from popart.diagnosis import Diagnosis

FORMATS = (".png", ".svg", ".pdf")


def _hint(kind: str, text: str) -> Any:
    return tyro.conf.arg(help_behavior_hint=f"(default: {text})", metavar=kind)


@dataclass(frozen=True)
class Diagnose:
    """Measure whether targets are too large and whether they drift; recommend a rule and draw a figure.

    Everything is measured in the order of the file. Nothing is trained.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """CSV or NPY file, TensorBoard event file or a folder of these; - for standard input (CSV or NPY)."""

    column: Annotated[str | None, _hint("NAME", "the only column of numbers")] = None
    """Column of a CSV file: its name, or its number from 0 if there is no header."""

    tag: Annotated[str | None, _hint("NAME", "the only tag")] = None
    """Tag of a TensorBoard log."""

    discount: Annotated[float | None, _hint("FLOAT", "none: the file has targets")] = None
    """Discount γ, if the file has rewards. The diagnosis is then of their discounted returns, which a value
    function learns."""

    ends: Annotated[str | None, _hint("NAME", "none: one long episode")] = None
    """With --discount: column of a CSV file that is 1 or true in the last row of each episode."""

    batch: int = 32
    """Number of targets in one update of the statistics."""

    out: Annotated[Path | None, _hint("PATH", "FILE-diagnosis.png in this folder")] = None
    """Path of the figure (.png, .svg or .pdf); an existing one is replaced."""

    def __post_init__(self) -> None:
        check_whole("batch", self.batch, 1)
        if self.discount is not None:
            check_between("discount", self.discount, 0, 1)
        elif self.ends is not None:
            raise ValueError(f"ends is {self.ends!r}, which needs discount: episodes matter only for returns")
        if self.out is not None and self.out.suffix not in FORMATS:
            raise ValueError(f"out is '{self.out}'; it must end in {', '.join(FORMATS)}")

    def run(self) -> Path:
        import popart
        from popart.lab.targets import read_targets

        stream = read_targets(self.file, self.column, self.tag, self.ends)
        try:
            found = popart.diagnose(
                stream.targets, discount=self.discount, ends=stream.ends, batch=self.batch
            )
        except ValueError as error:
            raise LabError(f"{self.file}: {error}") from error
        _print(found)
        return self._draw(found)

    def _draw(self, found: "Diagnosis") -> Path:
        name = "stdin" if str(self.file) == "-" else self.file.resolve().stem
        out = self.out or Path(f"{name}-diagnosis.png")
        try:
            return found.plot(out)
        except ImportError as error:
            raise LabError(str(error)) from error
        except OSError as error:
            raise LabError(f"{out} cannot be written: {error.strerror or error}") from error


def _print(found: "Diagnosis") -> None:
    from rich.text import Text

    from popart.diagnosis.words import code
    from popart.lab.tables import console, print_table

    rows = [{"measure": f.name, "value": f.value, "meaning": f.meaning} for f in found.findings()]
    print_table(f"Are these targets too large? {found.answer}", rows)
    begin = f"Begin with {code(found.rule)}."
    for title, sentences in ((begin, found.reasons), ("What to do:", found.advice)):
        console().print(Text(title), *(Text(f"- {x}") for x in sentences), "", sep="\n")
