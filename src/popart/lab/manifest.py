"""The manifest of a run: its settings, versions, device, commit, times, and the results to show.

Manifests carry `"format": 2`. Those of the first release have no format. They are read, with the names of
their settings translated, but such runs are not resumed.
"""

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from popart.lab.checks import LabError
from popart.lab.files import printable, read_file, write_atomically
from popart.lab.machine import cores, first_device
from popart.lab.schemas import Manifest, check

MANIFEST = "manifest.json"
FORMAT = 2
PACKAGES = ("popart-learn", "numpy", "jax", "matplotlib", "ale-py")
MOST_BYTES = 2**24
"""Largest manifest that is read, in bytes."""

RENAMED_SETTINGS = {
    "step_size": "learning_rate",
    "start": "initial_weights",
    "replay": "replay_size",
    "undo_wraps": "undo_overflow",
}
"""Settings of the first release, and their names today."""

ADDED_SETTINGS = {"train": {"rmsprop_epsilon": 0.01}}
"""Settings that earlier runs of an experiment lack, and the values that were fixed then."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a run, with current names of settings; its format is 1 for the first release."""
    manifest = _translated(_load(folder))
    there = manifest["format"]
    if isinstance(there, int) and there > FORMAT:
        raise LabError(f"{folder} was written by a newer version of popart-learn; install that version")
    try:
        check(manifest, Manifest, str(folder / MANIFEST))
    except LabError as error:
        raise LabError(f"{error}; {_repair(folder)}") from error
    added = ADDED_SETTINGS.get(manifest["experiment"], {})
    return manifest | {"settings": added | manifest["settings"]}


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of a run as readable JSON."""
    content = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / MANIFEST, content.encode())


def update_manifest(folder: Path, **changes: Any) -> None:
    """Change entries of a manifest and leave the rest as it was written, whatever its format."""
    write_manifest(folder, _load(folder) | changes)


def own_command(folder: Path, manifest: dict[str, Any]) -> str:
    """Return the command of a run, with the folder in which the run is now."""
    try:
        words = shlex.split(manifest["command"])
    except ValueError:
        return manifest["command"]
    if "--out" in words[:-1]:
        at = words.index("--out") + 1
        names = [str(manifest["settings"].get(name)) for name in ("game", "agent", "seed")]
        of_several = folder.name == "-".join(names) != Path(words[at]).name  # a member of a fleet
        words[at] = str(folder.parent if of_several else folder)
    elif manifest["experiment"] == "evaluate":
        words[2:3] = [str(folder.parent)]
    else:
        words += ["--out", str(folder)]
    return shlex.join(words)


def _load(folder: Path) -> dict[str, Any]:
    if not os.path.lexists(folder / MANIFEST):
        raise LabError(f"{folder} is not a run folder: it has no {MANIFEST}")
    try:
        manifest = json.loads(read_file(folder / MANIFEST, MOST_BYTES))
    except RecursionError as error:
        raise _damaged(folder, "it is nested too deeply") from error
    except ValueError as error:
        raise _damaged(folder, str(error)) from error
    if not isinstance(manifest, dict):
        raise _damaged(folder, "it is not a JSON object")
    return printable(manifest)


def _damaged(folder: Path, reason: str) -> LabError:
    return LabError(f"{folder / MANIFEST} is damaged ({reason}); {_repair(folder)}")


def _repair(folder: Path) -> str:
    return f"repair it, or move {folder} away and run again"


def _translated(manifest: dict[str, Any]) -> dict[str, Any]:
    if "format" in manifest:
        return manifest
    today = {"continued": "resumed"}
    manifest = {today.get(name, name): value for name, value in manifest.items()} | {"format": 1}
    settings = manifest.get("settings")
    if isinstance(settings, dict):
        manifest["settings"] = {RENAMED_SETTINGS.get(name, name): x for name, x in settings.items()}
    return manifest


def now() -> str:
    """Return the time in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def device() -> str:
    """Describe the machine: its GPU or CPU, cores, architecture and operating system."""
    first = first_device()
    name = "CPU" if first.platform == "cpu" else first.device_kind
    return f"{name}; {cores()} cores, {platform.machine()}, {platform.system()}"


def commit() -> str | None:
    """Return the commit of the source and whether files were changed; None outside of a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        tracked = subprocess.run(
            [*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=False
        )
        if tracked.returncode:
            return None
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*git, "--no-optional-locks", "status", "--porcelain", "-uno"], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + (" and changes" if changed.stdout else "")
