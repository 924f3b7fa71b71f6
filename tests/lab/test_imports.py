"""Imports go one way: campaign → experiments → train, play → envs, dqn → the library."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import popart

ROOT = Path(popart.__file__).parent
LAB = ROOT / "lab"
EXPERIMENTS = [path.name for path in sorted((LAB / "experiments").iterdir()) if (path / "run.py").exists()]
COMPOSE = {"popart.lab.cli", "popart.lab.reproduce"}
"""Modules that may import everything."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in ROOT.rglob("*.py")}


def imported(module: str, *, when_loaded: bool = False) -> Iterator[str]:
    """Yield the modules of popart that a module imports; `when_loaded`: only at its top level."""
    tree = ast.parse(MODULES[module].read_text("utf-8"))
    for node in tree.body if when_loaded else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if inside(alias.name, "popart"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found = {name if name in MODULES else str(node.module) for name in names}
            yield from (name for name in found if inside(name, "popart"))


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def violations(package: str, *forbidden: str, allowed: str = "-") -> list[str]:
    return [
        f"{module} imports {name}"
        for module in MODULES
        if inside(module, package) and module not in COMPOSE
        for name in imported(module)
        if any(inside(name, other) for other in forbidden) and not inside(name, allowed)
    ]


LAB_RULES = {
    "envs": ("dqn", "train", "play", "experiments", "campaign"),
    "dqn": ("envs", "train", "play", "experiments", "campaign"),
    "train": ("play", "experiments", "campaign"),
    "play": ("experiments", "campaign"),
    "experiments": ("campaign",),
    "campaign": ("dqn",),
    "report": ("envs", "dqn", "train", "play", "experiments", "campaign"),
}


@pytest.mark.parametrize("part", LAB_RULES)
def test_parts_of_the_laboratory_import_one_way(part: str) -> None:
    forbidden = [f"popart.lab.{other}" for other in LAB_RULES[part]]
    assert violations(f"popart.lab.{part}", *forbidden) == []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiments_import_no_other_experiment(experiment: str) -> None:
    own = f"popart.lab.experiments.{experiment}"
    assert violations(own, "popart.lab.experiments", allowed=own) == []


def test_modules_of_the_laboratory_itself_import_none_of_its_parts() -> None:
    """These modules, such as runs and figures, are shared by all parts."""
    parts = [f"popart.lab.{part}" for part in ("envs", "dqn", "train", "play", "experiments", "campaign")]
    shared = [name for name in MODULES if name.count(".") == 2 and inside(name, "popart.lab")]
    shared = [name for name in shared if MODULES[name].name != "__init__.py"]
    assert [v for name in shared for v in violations(name, *parts)] == []
    assert {"popart.lab.runs", "popart.lab.figures", "popart.lab.analysis"} <= set(shared)


def loaded(module: str) -> set[str]:
    """Return the modules of popart that are loaded with a module."""
    found, todo = set[str](), [module]
    while todo:
        new = {name for name in imported(todo.pop(), when_loaded=True) if name in MODULES} - found
        found |= new
        todo += new
    return found


@pytest.mark.parametrize("module", [name for name in MODULES if name.endswith(".analysis")])
def test_analyses_load_nothing_that_runs(module: str) -> None:
    """Neither runs nor agents nor environments; settings, names of games and other analyses are fine."""
    parts = ("runs", "progress", "dqn", "envs", "train", "play")
    others = {x for x in loaded(module) if not x.endswith(".analysis")}
    needed = {"popart.lab.envs.games"}
    assert {x for x in others if any(inside(x, f"popart.lab.{part}") for part in parts)} <= needed
    assert not {x for x in loaded(module) if x.endswith((".run", ".sweep", ".learner", ".training"))}


def test_the_library_imports_nothing_of_the_laboratory() -> None:
    command = "popart.__main__"  # is the laboratory's
    core = [name for name in MODULES if not inside(name, "popart.lab") and name != command]
    assert [
        f"{name}: {other}" for name in core for other in imported(name) if inside(other, "popart.lab")
    ] == []


def test_imports_inside_functions_are_found() -> None:
    assert "popart.lab.experiments.regression.run" in set(
        imported("popart.lab.experiments.regression.config")
    )
