"""Files of a run folder: tables as CSV, and writes that replace a file as a whole or not at all."""

import csv
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from popart.lab.checks import LabError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole. If that fails, the old file stays and no temporary file is left behind."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise LabError(
            f"{path} cannot be written: {error.strerror}. The files that were there are unchanged. Run the "
            "same command again to resume."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same keys as CSV, with all digits of numbers; None becomes an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in rows)
    write_atomically(path, text.getvalue().encode())


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
