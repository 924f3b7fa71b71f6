"""The package is complete when it is built and installed, and says so when another one has overwritten it."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import popart

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "popart"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
REPAIR = "pip uninstall popart popart-learn; pip install popart-learn"


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=alone, check=False)
    assert not check or ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def write_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """Write a wheel with pure Python files."""
    stem = f"{name.replace('-', '_')}-{version}"
    path, info = folder / f"{stem}-py3-none-any.whl", f"{stem}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\npopart = popart_command:main\n" if files else b"",
    }
    record = "".join(f"{file},,\n" for file in (*content, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for file, data in {**content, f"{info}/RECORD": record.encode()}.items():
            wheel.writestr(file, data)
    return path


def sources() -> dict[str, bytes]:
    files = (path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    found = {f"popart/{path.relative_to(SOURCE).as_posix()}": path.read_bytes() for path in files}
    command = SOURCE.parent / "popart_command.py"
    return {command.name: command.read_bytes(), **found}


class Environment:
    """A virtual environment that sees, beside what is installed in it, the packages of a folder."""

    def __init__(self, folder: Path, packages: Path) -> None:
        venv.create(folder, with_pip=False)
        self.folder, self.python = folder, folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        self.site = site
        (site / "packages.pth").write_text(f"{packages}\n")

    def pip(self, *arguments: str | Path) -> None:
        quiet = ("--quiet", "--disable-pip-version-check", "--python", self.python)
        run(sys.executable, "-m", "pip", *quiet, *arguments, cwd=self.folder)

    def install(self, wheel: Path) -> None:
        self.pip("install", "--no-deps", "--no-index", wheel)

    def call(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run(self.python, *arguments, cwd=self.folder, check=check)


def overwritten(folder: Path, *, removed: bool = False) -> Path:
    """Return a folder with this package after another has overwritten its `__init__.py`, or removed it."""
    shutil.copytree(SOURCE, folder / "popart", ignore=shutil.ignore_patterns("__pycache__"))
    init = folder / "popart" / "__init__.py"
    init.write_bytes(b"")
    if removed:
        init.unlink()
    return folder


@pytest.mark.parametrize("removed", [False, True])
def test_a_package_that_was_overwritten_says_how_to_repair_it(tmp_path: Path, removed: bool) -> None:
    folder, packages = overwritten(tmp_path, removed=removed), Path(np.__file__).parents[1]
    path = f"import sys; sys.path += [{str(folder)!r}, {str(packages)!r}]; "
    alone = (sys.executable, "-S", "-c")  # without an editable installation
    ended = run(*alone, path + "import popart.testing", cwd=tmp_path.parent, check=False)
    assert ended.stderr.splitlines()[-1] == (
        f"ImportError: {folder / 'popart'} is not as popart-learn installed it: another distribution has "
        f"overwritten or removed its __init__.py. Repair it with: {REPAIR}"
    )
    command = path + "from popart.lab.cli import main; main(['--version'])"
    ended = run(*alone, command, cwd=tmp_path.parent, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("popart: ")
    assert REPAIR in line


def test_modules_that_are_imported_by_name_check_the_installation() -> None:
    for name in ("torch/__init__.py", "jax/__init__.py", "testing.py", "lab/cli.py"):
        assert "check_installation()" in (SOURCE / name).read_text("utf-8"), name


@pytest.mark.parametrize("command", [["-m", "popart"], ["-m", "popart.lab.cli"]])
def test_the_command_knows_its_version_without_the_laboratory(command: list[str], tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "popart", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tyro.py").write_text("raise ImportError")
    ended = run(sys.executable, *command, "--version", cwd=tmp_path)
    assert ended.stdout == f"popart {popart.__version__}\n"
    ended = run(sys.executable, *command, "diagnose", cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert 'pip install "popart-learn[lab]"' in ended.stderr


def required(extra: str) -> set[str]:
    """Return the distributions that an extra asks for itself, and through other extras."""
    found = set[str]()
    for text in EXTRAS[extra]:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == PROJECT["name"]:
            assert requirement.extras, f"{extra} asks for {text}, which adds nothing"
            found |= set().union(*(required(other) for other in requirement.extras))
        else:
            assert requirement.specifier, f"{extra} asks for {text} without a version"
            found.add(canonicalize_name(requirement.name))
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_ask_for_declared_packages_in_tested_versions(extra: str) -> None:
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {canonicalize_name(Requirement(line).name) for line in pins if line}
    assert required(extra)
    assert required(extra) <= pinned


def imported(folder: Path) -> Iterator[str]:
    """Yield the top-level modules that the files of a folder import, wherever they do."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


@pytest.mark.parametrize("extra", ["torch", "jax", "lab"])
def test_an_extra_declares_what_its_part_imports(extra: str) -> None:
    others = set(imported(SOURCE / extra)) - set(sys.stdlib_module_names) - {"popart", "numpy"}
    distributions = importlib.metadata.packages_distributions()
    found = {canonicalize_name(distributions[module][0]) for module in others}
    own_extra, asked_for = {"ray"}, {"markupsafe", "protobuf"}  # by jinja2 and tensorboardX
    assert found - required(extra) <= own_extra | asked_for


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=ROOT)
    return out


@pytest.mark.slow
@pytest.mark.xdist_group("built")
def test_wheel_and_sdist_are_built_and_pass_the_index_checks(built: Path) -> None:
    wheel, sdist = sorted(built.iterdir(), key=lambda path: path.suffix, reverse=True)
    assert wheel.name == f"popart_learn-{popart.__version__}-py3-none-any.whl"
    assert sdist.name == f"popart_learn-{popart.__version__}.tar.gz"
    said = run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist, cwd=built).stdout
    assert said.count("PASSED") == 2
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not re.match(r"popart_learn-[^/]+\.dist-info/", name)}
    assert names == sources().keys()
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/popart/py.typed",
        "tests/test_package.py",
    } <= inside


def metadata_of(built: Path) -> importlib.metadata.PathDistribution:
    (path,) = built.glob("*.whl")
    (folder,) = (folder for folder in zipfile.Path(path).iterdir() if folder.name.endswith(".dist-info"))
    return importlib.metadata.PathDistribution(folder)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.xdist_group("built")
def test_the_description_on_pypi_is_the_readme_with_links_to_its_tag(built: Path) -> None:
    description = metadata_of(built).metadata.json["description"]
    assert isinstance(description, str)
    links = re.findall(r"\]\((.*?)\)", description)
    repository = PROJECT["urls"]["Source"]
    raw = repository.replace("github.com", "raw.githubusercontent.com")
    tag = f"v{popart.__version__}"
    assert f"{raw}/{tag}/docs/scale.png" in links
    assert f"{repository}/blob/{tag}/docs/tutorial/index.md" in links
    assert all(link.startswith("https://") for link in links)
    back = re.sub(rf"\]\((?:{raw}/|{repository}/blob/){tag}/", "](", description)
    assert back == (ROOT / "README.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.xdist_group("built")
def test_the_metadata_of_the_wheel_have_every_extra(built: Path) -> None:
    requires = [Requirement(text) for text in metadata_of(built).requires or []]
    for extra in EXTRAS:
        asked = [r.name for r in requires if r.marker and r.marker.evaluate({"extra": extra})]
        assert set(map(canonicalize_name, asked)) == required(extra)
    assert {r.name for r in requires if r.marker is None} == {"numpy"}


@pytest.mark.slow
@pytest.mark.xdist_group("built")
def test_the_wheel_works_in_an_empty_environment_with_numpy_alone(built: Path, tmp_path: Path) -> None:
    packages = tmp_path / "numpy-alone"
    packages.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (Path(np.__file__).parents[1] / name).exists():
            (packages / name).symlink_to(Path(np.__file__).parents[1] / name)
    environment = Environment(tmp_path / "venv", packages)
    (wheel,) = built.glob("*.whl")
    environment.install(wheel)
    code = (
        "import importlib.util as find, popart, popart.testing\n"
        "assert not any(map(find.find_spec, ('torch', 'jax', 'matplotlib', 'tyro', 'rich')))\n"
        "print(popart.__file__); str(popart.diagnose([1.0, 2.0]))\n"
        "rule = popart.Moments(); print(rule.affine(rule.update(rule.init(), [1.0, 3.0])).scale)\n"
        "popart.testing.assert_scale_invariant(lambda scale: rule.affine(rule.init()).scale)"
    )
    place, scale = environment.call("-c", code).stdout.splitlines()
    assert Path(place).is_relative_to(environment.site)
    assert scale == "1.0"
    assert environment.call("-m", "popart", "--version").stdout == f"popart {popart.__version__}\n"
    ended = run(environment.folder / "bin" / "popart", "diagnose", "x", cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert 'pip install "popart-learn[lab]"' in ended.stderr


@pytest.mark.slow
def test_another_popart_installed_over_ours_is_told_and_the_repair_works(tmp_path: Path) -> None:
    ours = write_wheel(tmp_path, "popart-learn", popart.__version__, sources())
    stub = write_wheel(tmp_path, "popart", "0.1.1", {"popart/__init__.py": b""})
    environment = Environment(tmp_path / "venv", Path(np.__file__).parents[1])
    environment.install(ours)
    environment.call("-c", "import popart; popart.Moments")
    environment.install(stub)
    assert (environment.site / "popart" / "__init__.py").read_bytes() == b""
    for module in ("popart.torch", "popart.jax", "popart.testing"):
        ended = environment.call("-c", f"import {module}", check=False)
        assert "the unrelated distribution popart 0.1.1 is installed over it" in ended.stderr
        assert REPAIR in ended.stderr
    for command in ([environment.python, "-m", "popart"], [environment.folder / "bin" / "popart"]):
        ended = run(*command, "--version", cwd=tmp_path, check=False)
        assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
        assert REPAIR in ended.stderr
    environment.pip("uninstall", "--yes", "popart")
    assert "removed its __init__.py" in environment.call("-c", "import popart.testing", check=False).stderr
    environment.pip("uninstall", "--yes", "popart-learn")
    environment.install(ours)
    environment.call("-c", "import popart.testing; popart.Moments")
