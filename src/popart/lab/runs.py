"""A run's folder: what was asked for, what came out, and how far it got.

    runs/regression/
      manifest.json     settings, versions, device, commit, started, finished, what to show
      *.csv             tables
      *.png *.svg       figures

Every file is replaced as a whole or not at all, so that a run that is killed, or whose disk is full, leaves
what it had. Starting a finished run again does nothing; starting an interrupted one goes on; a folder of
other settings is refused.
"""

import csv
import dataclasses
import importlib.metadata
import io
import json
import math
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import filelock

from popart.lab.checks import LabError
from popart.lab.machine import cores

MANIFEST = "manifest.json"
PACKAGES = ("popart-learn", "numpy", "jax", "matplotlib", "ale-py")


class Settings(Protocol):
    """What a run is asked for: a frozen dataclass with the run's folder as `out`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def out(self) -> Path: ...


@dataclasses.dataclass(frozen=True)
class Shown:
    """A figure or a table of a run, for the report: the name of its file, a heading and a caption."""

    name: str
    heading: str
    caption: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that the paper says, beside what came out here."""

    claim: str
    paper: str
    here: str
    agrees: bool


class Run:
    """The folder of one experiment, held by one process while it is open."""

    def __init__(
        self, experiment: str, title: str, settings: Settings, free: Collection[str] = (), command: str = ""
    ) -> None:
        """`free` are names of settings that may be others when a run is gone on with."""
        self.folder = settings.out
        self.command = command or command_line(experiment, settings)
        self._free = free
        self._asked = {"experiment": experiment, "title": title, "settings": plain_settings(settings)}
        self._lock = filelock.FileLock(self.folder / ".lock")
        self._manifest: dict[str, Any] = {}
        self._shown: list[Shown] = []
        self._findings: list[Finding] = []

    @property
    def finished(self) -> bool:
        return self._manifest["finished"] is not None

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise LabError(
                f"{self.folder} is in use by another process; wait for it, or give another --out"
            ) from None
        except OSError as error:
            raise LabError(
                f"{self.folder} cannot be written: {error.strerror}; give another --out"
            ) from error
        try:
            self._begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _begin(self) -> None:
        now, versions = _now(), _versions()
        if (self.folder / MANIFEST).exists():
            self._manifest = read_manifest(self.folder)
            self._check_same()
            for left_over in self.folder.glob(".*.tmp"):  # by a process that was killed while it wrote
                left_over.unlink()
            if not self.finished:
                self._manifest.update(self._asked, command=self.command)
                self._manifest["continued"].append({"at": now, "versions": versions})
                self._write_manifest()
            return
        others = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))
        if others:
            raise LabError(
                f"{self.folder} has files ({others[0]}, ...) but no {MANIFEST}: it is not a run's folder; "
                "give another --out"
            )
        self._manifest = {
            **self._asked,
            "command": self.command,
            "versions": versions,
            "device": _device(),
            "commit": _commit(),
            "started": now,
            "continued": [],
            "finished": None,
        }
        self._write_manifest()

    def _check_same(self) -> None:
        (here, mine), (there, asked) = (
            (x["experiment"], x["settings"]) for x in (self._manifest, self._asked)
        )
        if here != there:
            raise LabError(f"{self.folder} is a run of {here!r}, not of {there!r}; give another --out")
        mine, asked = ({k: v for k, v in x.items() if k not in self._free} for x in (mine, asked))
        if mine != asked:
            raise LabError(
                f"{self.folder} is a run with other settings ({_difference(mine, asked)}); "
                f"give another --out, or what it was started with: {self._manifest['command']}"
            )

    @property
    def continued(self) -> int:
        """How often the run was gone on with."""
        return len(self._manifest["continued"])

    @property
    def settings(self) -> dict[str, Any]:
        """Those that it was last begun with."""
        return self._manifest["settings"]

    def reopen(self) -> None:
        """Go on with a run that was finished, with other free settings."""
        now = {"at": _now(), "versions": _versions()}
        self._manifest.update(self._asked, command=self.command, finished=None)
        self._manifest["continued"].append(now)
        self._write_manifest()

    def write(self, name: str, content: bytes) -> None:
        write_atomically(self.folder / name, content)

    def write_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows that have the same keys, as CSV; numbers in full."""
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in rows)
        self.write(f"{name}.csv", text.getvalue().encode())

    def read_table(self, name: str) -> list[dict[str, str]]:
        """The rows that were written so far; none if there is no such table."""
        path = self.folder / f"{name}.csv"
        return read_table(path) if path.exists() else []

    def cut_table(self, name: str, frames: int) -> None:
        """Forget rows of later frames, which a process wrote that was killed, and one that it did not end."""
        rows = self.read_table(name)
        kept = [r for r in rows if None not in r.values() and int(r["frames"]) <= frames]
        if kept:
            self.write_table(name, kept)
        else:
            (self.folder / f"{name}.csv").unlink(missing_ok=True)

    def show_table(
        self, name: str, heading: str, caption: str, rows: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Write a table, unless it is written already, and have the report show it."""
        if rows is not None:
            self.write_table(name, rows)
        self._shown.append(Shown(name, heading, " ".join(caption.split()), "table"))

    def show_figure(self, name: str, heading: str, caption: str, figure: Any) -> None:
        """Write a figure as PNG and SVG, and have the report show it."""
        from popart.lab.figures import images

        for suffix, content in images(figure):
            self.write(f"{name}.{suffix}", content)
        self._shown.append(Shown(name, heading, " ".join(caption.split()), "figure"))

    def find(self, claim: str, *, paper: str, here: str, agrees: bool) -> None:
        """Record what came out beside what the paper says."""
        self._findings.append(Finding(claim, paper, here, agrees))

    def finish(self) -> None:
        self._manifest["shown"] = [dataclasses.asdict(x) for x in self._shown]
        self._manifest["findings"] = [dataclasses.asdict(x) for x in self._findings]
        self._manifest["finished"] = _now()
        self._write_manifest()

    def _write_manifest(self) -> None:
        self.write(MANIFEST, (json.dumps(self._manifest, indent=2, ensure_ascii=False) + "\n").encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole; if that fails, what was there stays and nothing is left beside it."""
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
            f"{path} cannot be written: {error.strerror}; what was there is as it was, "
            "and the same command goes on from it"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """A run's manifest, or an error that says what is wrong with it."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"{folder} is not a run's folder: {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise LabError(
            f"{path} is damaged ({error}); mend it, or move {folder} away and run again"
        ) from error
    needed = {"experiment", "title", "settings", "command", "versions", "started", "continued", "finished"}
    missing = needed - set(manifest) if isinstance(manifest, dict) else needed
    if missing:
        raise LabError(
            f"{path} is damaged (it lacks {', '.join(sorted(missing))}); mend it, or move {folder} away "
            "and run again"
        )
    return manifest


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def plain_settings(settings: Settings) -> dict[str, Any]:
    """Settings as JSON has them, without the folder."""
    fields = (f.name for f in dataclasses.fields(settings) if f.name != "out")
    return json.loads(json.dumps({name: getattr(settings, name) for name in fields}, default=str))


def command_line(experiment: str, settings: Settings) -> str:
    """The command that asks for these settings. What has no default has no name there."""
    words = ["popart", experiment]
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), field.name.replace("_", "-")
        if value == field.default:
            continue
        if field.default is dataclasses.MISSING:
            words.append(str(value))
        elif isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            values: Iterable[Any] = value if isinstance(value, tuple) else (value,)
            words += [f"--{name}", *map(_word, values)]
    return shlex.join(words)


def _word(value: Any) -> str:
    return (
        f"{value:.10g}"
        if isinstance(value, float) and math.isclose(float(f"{value:.10g}"), value)
        else str(value)
    )


def _difference(here: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    names = [k for k in {**here, **asked} if here.get(k) != asked.get(k)]
    return "; ".join(f"{k} is {here.get(k)!r} there, {asked.get(k)!r} here" for k in names)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def _device() -> str:
    import jax

    device = jax.devices()[0]
    name = "CPU" if device.platform == "cpu" else device.device_kind
    return f"{name}; {cores()} cores, {platform.machine()}, {platform.system()}"


def _commit() -> str | None:
    """The commit of the source, if it runs from a checkout, and whether it was changed."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        tracked = subprocess.run(
            [*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=False
        )
        if tracked.returncode:
            return None
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + (" and changes" if changed.stdout else "")
