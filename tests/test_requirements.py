"""Packages that `make` installs are pinned to files with known hashes, except PyTorch."""

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_package import ROOT, required

TORCH_FOR_GPUS = re.compile(r"nvidia-|cuda-|triton")
"""Packages that only PyTorch's builds for GPUs need."""


def pins(path: str) -> dict[str, tuple[Requirement, int]]:
    """Return the pinned packages of a file, with their numbers of hashes."""
    blocks = re.split(r"\n(?=\S)", (ROOT / path).read_text("utf-8").strip())
    pinned = [(Requirement(re.split(r" *\\\n", block)[0]), block.count("--hash=sha256:")) for block in blocks]
    return {canonicalize_name(requirement.name): (requirement, n) for requirement, n in pinned}


def here(requirement: Requirement, extras: frozenset[str] = frozenset()) -> bool:
    """Return whether a requirement applies to this Python and platform."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})


def needed(requirement: Requirement, seen: set[tuple[str, frozenset[str]]]) -> Iterator[str]:
    """Yield the names of a package and of all that it needs here, without PyTorch and what it needs."""
    name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
    if name == "torch" or (name, extras) in seen:
        return
    seen.add((name, extras))
    yield name
    for text in importlib.metadata.requires(name) or ():
        if here(other := Requirement(text), extras):
            yield from needed(other, seen)


@pytest.mark.parametrize("extra", ["lab", "dev"])
def test_all_that_an_extra_needs_is_pinned_with_hashes_to_the_tested_version(extra: str) -> None:
    pinned, tested = pins(f"requirements/{extra}.txt"), pins("constraints.txt")
    assert all(n > 0 for _, n in pinned.values())
    seen: set[tuple[str, frozenset[str]]] = set()
    builds = {"hatchling", "hatch-fancy-pypi-readme", "editables"}
    names = {name for root in required(extra) | builds for name in needed(Requirement(root), seen)}
    assert len(names) > 50
    assert names <= pinned.keys()
    used = {name: requirement for name, (requirement, _) in pinned.items() if here(requirement)}
    assert {str(r.specifier) for name, r in used.items() if r.specifier != tested[name][0].specifier} == set()


def test_all_tested_packages_but_torch_are_pinned_with_hashes() -> None:
    assert pins("constraints.txt").keys() - pins("requirements/dev.txt").keys() == {"torch"}


def test_what_torch_needs_without_a_gpu_is_pinned_with_hashes() -> None:
    asked = [Requirement(text) for text in importlib.metadata.requires("torch") or ()]
    names = {canonicalize_name(requirement.name) for requirement in asked if here(requirement)}
    pinned = pins("requirements/dev.txt").keys()
    assert {name for name in names if not TORCH_FOR_GPUS.match(name)} <= pinned


def test_hashes_are_of_no_particular_index() -> None:
    for path in (ROOT / "requirements").iterdir():
        assert not re.search("https?:|file:|--index|--extra-index|--find-links", path.read_text("utf-8")), (
            path
        )


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("target", ["reproduce", "test", "check", "docs", "bench"])
def test_make_installs_nothing_without_a_hash_but_torch(tmp_path: Path, target: str) -> None:
    command = ["make", "--dry-run", f"VENV={tmp_path}", target]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    installs = re.findall(r"pip .* install (.*)", ended.stdout)
    assert len(installs) >= 2
    allowed = (
        r"--require-hashes .*|--constraint constraints.txt torch|--no-deps --no-build-isolation --editable \."
    )
    assert [options for options in installs if not re.fullmatch(allowed, options)] == []


@pytest.mark.parametrize("right", [True, False])
def test_a_file_with_another_hash_is_refused(tmp_path: Path, right: bool) -> None:
    """pip refuses it, with the options of the Makefile."""
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny.py", "x = 1\n")
        file.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        file.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\ntiny-1.0.dist-info/RECORD,,\n")
    content = wheel.read_bytes() if right else b"another file"
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"tiny==1.0 --hash=sha256:{hashlib.sha256(content).hexdigest()}\n")
    (options,) = re.findall(r"^HASHED = \$\(PIP\) (.*)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    place = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "installed")]
    command = [sys.executable, "-m", "pip", *options.split(), str(requirements), *place]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode == 0) == right, ended.stderr
    assert (tmp_path / "installed" / "tiny.py").exists() == right
    assert ("DO NOT MATCH THE HASHES" in ended.stderr) != right
