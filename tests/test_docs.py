"""The reference has every public name and every option; the tutorial's page is its source."""

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from pkgutil import resolve_name, walk_packages
from types import ModuleType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import jupytext
import matplotlib.figure
import pytest

import popart
from popart.lab.cli import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
UNLISTED = ("popart.correspondence", "popart.deep")
"""Public modules without `__all__`: their functions are public."""

importing_all = pytest.mark.xdist_group("importing")
"""Tests that import every module of the package."""


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return load("hooks")


def load(name: str) -> ModuleType:
    """Import a module of the folder docs."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


def public_names() -> set[str]:
    """Return the names in `__all__` of every module that has one, and those of the modules without."""
    found = set()
    for module in ["popart", *(info.name for info in walk_packages(popart.__path__, "popart."))]:
        if module.startswith("popart.lab") or "._" in module:
            continue
        names = getattr(importlib.import_module(module), "__all__", ())
        found |= {f"{module}.{name}" for name in names}
    for module in map(importlib.import_module, UNLISTED):
        own = {n for n, f in vars(module).items() if getattr(f, "__module__", "") == module.__name__}
        found |= {f"{module.__name__}.{n}" for n in own if not n.startswith(("_", "check_"))}
    return found


def documented_names(hooks: ModuleType) -> set[str]:
    """Return the names that pages of the reference describe."""
    pages = map(hooks.reference_of, hooks.undescribed())
    return hooks.described() | {name for page in pages for name in re.findall(r"^::: (\S+)", page, re.M)}


@importing_all
def test_the_reference_has_every_public_name(hooks: ModuleType) -> None:
    documented = documented_names(hooks)
    assert public_names() <= documented
    for name in documented:
        resolve_name(name)
    assert len(popart.__all__) <= 16


def given_by(thing: Any) -> Iterator[Any]:
    """Yield the annotations of what a caller gets: values that are returned, fields, and bases of rules."""
    names = {"Figure": matplotlib.figure.Figure}  # which is imported where it is drawn
    if inspect.isfunction(thing):
        yield get_type_hints(thing, localns=names).get("return")
    elif inspect.isclass(thing):
        if is_dataclass(thing) or issubclass(thing, tuple):
            yield from (hint for name, hint in get_type_hints(thing).items() if not name.startswith("_"))
        yield from (base for base in thing.__mro__[1:] if issubclass(base, popart.Rule))
        for name in (name for name in dir(thing) if not name.startswith("_")):
            member = inspect.getattr_static(thing, name)
            method = getattr(member, "fget", getattr(member, "__func__", member))
            if inspect.isfunction(method) and method.__module__.startswith("popart."):
                yield from given_by(method)


def classes_in(annotation: Any) -> Iterator[type]:
    """Yield the classes of popart that an annotation names, also inside of others."""
    for part in (annotation, get_origin(annotation)):
        if inspect.isclass(part) and part.__module__.startswith("popart."):
            yield part
    for part in annotation if isinstance(annotation, list) else get_args(annotation):
        yield from classes_in(part)


def undocumented(documented: set[str]) -> set[str]:
    """Return the classes of public results that are not documented."""
    things = [resolve_name(name) for name in documented]
    for module in filter(inspect.ismodule, tuple(things)):
        things += [x for x in vars(module).values() if inspect.getmodule(x) is module]
    given = {found for thing in things for hint in given_by(thing) for found in classes_in(hint)}
    names = {f"{found.__module__}.{found.__name__}" for found in given if found not in things}
    return {name for name in names if "._" not in name}


@importing_all
def test_the_reference_has_every_class_that_a_public_function_gives(hooks: ModuleType) -> None:
    assert undocumented(documented_names(hooks)) == set()


class Hidden(NamedTuple):
    """A state that no page describes."""

    mean: float


def returning() -> dict[str, Hidden] | None: ...


class Having(NamedTuple):
    """A public class with a hidden field."""

    state: Hidden


@pytest.mark.parametrize("public", [returning, Having])
def test_a_class_that_no_page_describes_is_found(public: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hidden, "__module__", "popart.new")
    monkeypatch.setattr(popart, "preserve", public)
    assert undocumented({"popart.preserve"}) == {"popart.new.Hidden"}


def test_a_public_module_that_no_page_describes_gets_a_page(
    hooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "popart"
    (package / "lab").mkdir(parents=True)
    (package / "new.py").write_text('"""Something | new."""\n__all__ = ["f"]\n')
    (package / "_private.py").write_text('__all__ = ["g"]\n')
    (package / "lab" / "__init__.py").write_text('__all__ = ["h"]\n')
    monkeypatch.setattr(hooks, "SOURCE", package)
    assert hooks.undescribed() == ["popart.new"]
    assert hooks.page_of("popart.new") == "reference/new.md"
    assert hooks.reference_of("popart.new") == "# `popart.new`\n\nSomething | new.\n\n::: popart.new.f\n"
    assert hooks.row_of("popart.new") == "| [`popart.new`](new.md) | Something \\| new. |"


ALL = COMMANDS | {
    f"{name} {sub}": nested
    for name, path in COMMANDS.items()
    for sub, nested in getattr(resolve_name(path), "SUBCOMMANDS", {}).items()
}
"""Commands and subcommands."""


def names_of(settings: Any) -> set[str]:
    """Return the names of all options, also of nested dataclasses."""
    found = set[str]()
    for field in fields(settings):
        nested = field.default_factory
        found |= names_of(nested) if is_dataclass(nested) else {field.name}
    return found


@pytest.mark.parametrize("name", ALL)
def test_every_option_of_a_command_is_in_the_reference(hooks: ModuleType, name: str) -> None:
    section = hooks.command(name)
    known = names_of(resolve_name(ALL[name]))
    rows = re.findall(r"^\| `(.*?)` \| (.*?) \| (.*?) \|$", section, re.MULTILINE)
    options = {first.split()[0].strip(",").removeprefix("--") for first, _, _ in rows if "--" in first}
    positional = [first for first, _, _ in rows if "--" not in first]
    assert len(options) + len(positional) == len(known)
    assert options <= {field.replace("_", "-") for field in known}
    assert all(text for _, text, _ in rows)
    assert all(default for _, _, default in rows), section


def test_subcommands_are_in_the_reference_after_their_command(hooks: ModuleType) -> None:
    headings = re.findall(r"^##+ `(.*?)`", hooks.commands(), re.MULTILINE)
    assert headings == [
        f"popart {name}" for name in sorted(ALL, key=lambda n: list(COMMANDS).index(n.split()[0]))
    ]
    assert {"popart campaign", "popart campaign plan", "popart campaign start"} <= set(headings)


def test_the_page_of_the_tutorial_is_its_source_with_outputs() -> None:
    def code(path: Path) -> list[str]:
        notebook = jupytext.reads(path.read_text("utf-8"), fmt="md")
        return [cell.source for cell in notebook.cells if cell.cell_type == "code"]

    folder = DOCS / "tutorial"
    assert code(folder / "dqn.md") == code(folder / "index.md")
    page = (folder / "index.md").read_text("utf-8")
    assert set(re.findall(r"\((picture_\d\.png)\)", page)) == {p.name for p in folder.glob("*.png")}
    for cell in jupytext.read(folder / "dqn.md").cells:
        if cell.cell_type == "markdown":
            assert all(line in page for line in cell.source.splitlines())


def test_the_first_block_of_the_tutorial(capsys: pytest.CaptureFixture[str]) -> None:
    """With Pop-Art every size is learned equally well; a linear layer learns one."""
    code = next(c.source for c in jupytext.read(DOCS / "tutorial" / "dqn.md").cells if c.cell_type == "code")
    exec(code, {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [float(size) for size, _, _ in rows] == [1e-6, 1, 1e6]
    assert len({ours for _, _, ours in rows}) == 1
    assert float(rows[0][2]) < 0.2
    assert [float(linear) < 0.2 for _, linear, _ in rows] == [False, True, False]


@pytest.mark.slow
def test_the_tutorial_shows_what_it_says() -> None:
    build = load("build_tutorial")
    page, pictures = build.page_of(build.execute(jupytext.read(build.SOURCE)))
    assert len(pictures) == 4
    caught = {
        name: (int(coin), int(gem))
        for name, coin, gem in re.findall(r"^(\S+) *: coin +(\d+)%, gem +(\d+)%", page, re.MULTILINE)
    }
    coin, gem = caught["clipped"]
    assert coin + gem > 90
    assert 30 < gem < 70
    assert caught["unclipped"][1] < 70
    assert caught["Pop-Art"][1] > 90
    assert "step by step: True" in page
    assert "times as large: True" in page


def test_the_map_of_the_paper_names_files_and_tests_that_exist() -> None:
    text = (DOCS / "explanation" / "paper.md").read_text("utf-8")
    defined = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for path in re.findall(r"`((?:src|tests)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path
    names = re.findall(r"`(test_\w+?)(?:…)?`", text)
    assert len(names) > 15
    for name in names:
        assert f"def {name}" in defined, name
    for command in re.findall(r"`popart (\w+)`", text):
        assert command in COMMANDS


def test_formulas_need_no_network() -> None:
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "https://" not in config
    css = DOCS / "assets" / "katex" / "katex.min.css"
    fonts = re.findall(r"url\(([^)]+)\)", css.read_text("utf-8"))
    assert fonts
    assert all((css.parent / font).exists() for font in fonts)
    assert (css.parent / "LICENSE").exists()
