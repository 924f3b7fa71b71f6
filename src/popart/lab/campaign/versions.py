"""Versions on which results depend. All machines of a campaign must have the same."""

import functools
import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path

import popart
from popart.lab.checks import LabError

PACKAGES = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "gymnax", "ale-py")


class VersionsError(LabError):
    """A machine has other versions than the campaign."""


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of popart, of its source, of Python and of the packages that compute."""
    found = {"popart-learn": popart.__version__, "source of popart": source()}
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def source() -> str:
    """Return a digest of popart's source: checkouts of one version may differ."""
    root, digest = Path(popart.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def difference(here: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Describe what differs, with both versions of each package; empty if nothing does."""
    names = [name for name in {**wanted, **here} if here.get(name) != wanted.get(name)]
    return "; ".join(
        f"{name} {here.get(name, 'unknown')} instead of {wanted.get(name, 'unknown')}" for name in names
    )


def check_versions(where: str, here: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse a machine with other versions than those of the campaign."""
    if found := difference(here, wanted):
        raise VersionsError(
            f"{where} has other versions than the campaign: {found}. Results would depend on the machine: "
            "install the same versions there, or start with --accept-versions to continue with other ones"
        )
