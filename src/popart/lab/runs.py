"""The folder of a run.

    runs/regression/
      manifest.json     settings, versions, device, commit, started, finished, and the results to show
      *.csv             tables
      *.png *.svg       figures

Every file is replaced as a whole or not at all, so that a run that is killed, or that fills the disk, loses
nothing that it had written. Starting a finished run again does nothing, starting an interrupted one resumes
it, and a folder of a run with other settings is refused. Some settings may grow: a run that is started again
with more games, for example, is extended by them.
"""

import dataclasses
import json
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import filelock

from popart.lab.analysis import analyse_all
from popart.lab.checks import LabError
from popart.lab.files import check_no_links, is_abandoned, read_table, write_atomically, write_table
from popart.lab.manifest import (
    FORMAT,
    MANIFEST,
    commit,
    device,
    now,
    own_command,
    read_manifest,
    versions,
    write_manifest,
)
from popart.lab.schemas import table_schema


class Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Command(Dataclass, Protocol):
    """The settings of a command: a flat frozen dataclass with the run folder as `out`."""

    @property
    def out(self) -> Path: ...


class InUseError(LabError):
    """Another process has the run folder open."""


class Run:
    """The folder of one run, locked by one process while it is open."""

    def __init__(
        self,
        experiment: str,
        title: str,
        settings: Command | Mapping[str, Any],
        free: Collection[str] = (),
        command: str = "",
        growing: Collection[str] = (),
    ) -> None:
        """Describe the run; entering it opens or creates its folder.

        Args:
            experiment: The name of the experiment, which is that of its command.
            title: A heading.
            settings: The settings as a dataclass or mapping, with the run folder as `out`.
            free: Names of settings that may differ when a run is resumed.
            command: The command line that starts the run; by default made from the settings.
            growing: Names of numbers and lists that may be larger when a run is started again.
        """
        flat = dict(settings) if isinstance(settings, Mapping) else _fields(settings)
        self.folder: Path = flat.pop("out")
        if not isinstance(settings, Mapping):
            command = command or command_line(experiment, settings)
        self.command = command
        self._free, self._growing = free, growing
        plain = json.loads(json.dumps(flat, default=str))
        self._description = {"experiment": experiment, "title": title, "settings": plain}
        self._lock = filelock.FileLock(self.folder / ".lock")
        self._manifest: dict[str, Any] = {}

    @property
    def _elsewhere(self) -> str:
        inside = os.path.lexists(self.folder.parent / MANIFEST)  # an evaluation, which has no --out
        return "copy the run to a folder that can be written" if inside else "give another --out"

    @property
    def finished(self) -> bool:
        """Whether all results of the run are there."""
        return self._manifest["finished"] is not None

    @property
    def resumed(self) -> int:
        """Number of times that the run was resumed."""
        return len(self._manifest["resumed"])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings with which the run was last started."""
        return self._manifest["settings"]

    def __enter__(self) -> Self:
        try:
            if self.folder.is_symlink() and os.path.lexists(self.folder.parent / MANIFEST):
                check_no_links(self.folder.parent)
            self.folder.mkdir(parents=True, exist_ok=True)
            check_no_links(self.folder)
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise InUseError(
                f"{self.folder} is in use by another process; wait for it, or give another --out"
            ) from None
        except OSError as error:
            raise LabError(f"{self.folder} cannot be written: {error.strerror}; {self._elsewhere}") from error
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _open(self) -> None:
        for place in (self.folder, *self.folder.glob("checkpoints/*/")):
            for temporary in place.glob(".*.tmp"):  # of a process that was killed while it wrote
                if is_abandoned(temporary):
                    temporary.unlink()
        if not os.path.lexists(self.folder / MANIFEST):
            self._create()
            return
        self._manifest = read_manifest(self.folder)
        if self._is_empty() and self._manifest["settings"] != self._description["settings"]:
            (self.folder / MANIFEST).unlink()
            self._create()
            return
        self._check_same()
        if not self.finished or self._is_extended():
            self.reopen()

    def _is_empty(self) -> bool:
        """Return whether the run has written only its manifest, so that nothing can be lost."""
        files = (path for path in self.folder.rglob("*") if not path.is_dir())
        return all(path.name in (MANIFEST, ".lock") for path in files)

    def _is_extended(self) -> bool:
        old, new = self._manifest["settings"], self._description["settings"]
        return any(old.get(name) != new[name] for name in self._growing)

    def _create(self) -> None:
        others = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))
        if others:
            raise LabError(
                f"{self.folder} has files ({others[0]}, ...) but no {MANIFEST}: it is not a run folder; "
                "give another --out"
            )
        started = {"command": self.command, "versions": versions(), "device": device(), "commit": commit()}
        times = {"started": now(), "resumed": [], "finished": None}
        self._manifest = {"format": FORMAT, **self._description, **started, **times}
        self._write_manifest()

    def _check_same(self) -> None:
        (here, old), (wanted, new) = (
            (x["experiment"], x["settings"]) for x in (self._manifest, self._description)
        )
        if here != wanted:
            raise LabError(f"{self.folder} is a run of {here!r}, not of {wanted!r}; give another --out")
        if self._manifest["format"] < FORMAT:  # new settings have the values that were fixed then
            new = {k: v for k, v in new.items() if k in old}
        may_differ = {*self._free, *(k for k in self._growing if _includes(new.get(k), old.get(k)))}
        old, new = ({k: v for k, v in x.items() if k not in may_differ} for x in (old, new))
        if old != new:
            raise LabError(
                f"{self.folder} is a run with other settings ({_difference(old, new)}); "
                f"give another --out, or run its own command: {own_command(self.folder, self._manifest)}"
            )

    def reopen(self) -> None:
        """Resume the run, even a finished one, with the changeable settings of this start."""
        if self._manifest["format"] < FORMAT:
            raise LabError(
                f"{self.folder} was started with the first release of popart, which alone can resume it; "
                "give another --out to start again"
            )
        self._manifest.update(self._description, command=self.command, finished=None)
        self._manifest.pop("diverged", None)
        self._manifest["resumed"].append({"at": now(), "versions": versions()})
        self._write_manifest()

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the run."""
        write_atomically(self.folder / name, content)

    def write_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows with the same keys as NAME.csv, with all digits of numbers."""
        write_table(self.folder / f"{name}.csv", rows)

    def read_table(self, name: str, growing: bool = False) -> list[dict[str, str]]:
        """Read the rows written so far; with `growing` without an incomplete last row; none if no table."""
        path = self.folder / f"{name}.csv"
        if not path.exists():
            return []
        return read_table(path, table_schema(self._description["experiment"], name), growing)

    def cut_table(self, name: str, frames: int) -> None:
        """Remove rows of later frames, and an incomplete last row, which a killed process has written."""
        kept = [row for row in self.read_table(name, growing=True) if float(row["frames"]) <= frames]
        if kept:
            self.write_table(name, kept)
        else:
            (self.folder / f"{name}.csv").unlink(missing_ok=True)

    def mark(self, **facts: Any) -> None:
        """Record facts about the run in its manifest."""
        self._manifest.update(facts)
        self._write_manifest()

    def finish(self) -> None:
        """Analyse the tables of the run, and mark it as finished."""
        finish_all([self])

    def _write_manifest(self) -> None:
        write_manifest(self.folder, self._manifest)


def finish_all(runs: Sequence[Run]) -> None:
    """Analyse the tables of several runs, side by side, and mark them as finished."""
    for run, results in zip(runs, analyse_all([run.folder for run in runs]), strict=True):
        run.mark(**results, finished=now())


def _fields(settings: Command) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}


def command_line(experiment: str, settings: Dataclass) -> str:
    """Return the command that gives these settings; a setting without default is a positional argument."""
    return shlex.join(["popart", experiment, *_options(settings)])


def _options(settings: Any) -> list[str]:
    """Return the options that differ from their defaults, with those of nested dataclasses."""
    words = []
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), field.name.replace("_", "-")
        if value == field.default:
            continue
        if dataclasses.is_dataclass(value):
            words += _options(value)
        elif field.default is dataclasses.MISSING:
            words.append(str(value))
        elif isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            values: Iterable[Any] = value if isinstance(value, tuple) else (value,)
            words += [f"--{name}", *map(_word, values)]
    return words


def _word(value: Any) -> str:
    short = f"{value:.10g}" if isinstance(value, float) else ""
    return short if short and float(short) == value else str(value)


def _includes(new: Any, old: Any) -> bool:
    """Return whether a list has all elements of another, or a number is at least as large."""
    if isinstance(new, list) and isinstance(old, list):
        return set(new) >= set(old)
    return isinstance(new, int) and isinstance(old, int) and new >= old


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    names = [k for k in {**old, **new} if old.get(k) != new.get(k)]
    return "; ".join(f"{k} is {old.get(k)!r} there, {new.get(k)!r} here" for k in names)
