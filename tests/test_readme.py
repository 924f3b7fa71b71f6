"""The code in the README and in the docs runs as it stands, and links lead to files that exist."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart
import popart.jax

ROOT = Path(__file__).parents[1]


def snippets(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def transitions(rng: np.random.Generator, features: int, actions: int) -> dict[str, Any]:
    """A batch whose rewards, in the millions, depend on the first feature."""
    state = torch.asarray(rng.normal(size=(16, features)), dtype=torch.float32)
    action = torch.asarray(rng.integers(0, actions, 16))
    reward = 1e6 * (state[:, 0] + 3)
    return {"state": state, "action": action, "reward": reward, "discount": 0.0, "next_state": state}


def test_the_readme_has_at_most_120_lines_and_one_figure() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120
    assert text.count("![") == 1
    assert all(len(code.splitlines()) <= 20 for code in snippets("README.md"))


def test_the_pytorch_lines_of_the_readme() -> None:
    code, _ = snippets("README.md")
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(code, names)
    batch = transitions(np.random.default_rng(0), 4, 2)
    for _ in range(600):
        names["learn"](**batch)
    values = names["network"](batch["state"]).gather(1, batch["action"][:, None])[:, 0]
    assert (values - batch["reward"]).abs().max().item() < 1e5


def test_the_jax_lines_of_the_readme() -> None:
    _, code = snippets("README.md")
    h = jnp.asarray(np.random.default_rng(0).normal(size=(16, 8)))
    params = {"head": {"w": jnp.ones((8, 2)), "b": jnp.zeros(2)}}
    names: dict[str, Any] = {"params": params, "h": h}
    exec(code, names)
    assert not names["values"].any()
    action, targets = jnp.zeros(16, int), 1e6 * (h[:, 0] + 3)
    learned = params, names["statistics"], names["optimizer"].init(params)
    for _ in range(3000):
        learned = names["learn"](*learned, h, action, targets)
    params, statistics, _ = learned
    assert float(names["art"].affine(statistics).scale) == pytest.approx(float(targets.std()), rel=1e-3)
    values = popart.jax.values(names["art"], statistics, params["head"], h)[:, 0]
    assert float(abs(values - targets).max()) < 1e5


def test_the_pytorch_lines_about_heads() -> None:
    (code,) = snippets("docs/how-to/pytorch.md")
    names = transitions(np.random.default_rng(0), 512, 18)
    names["body"] = torch.nn.Linear(512, 512)
    names["target"] = lambda s: torch.zeros(16, 18)
    exec(code, names)
    names["loss"].backward()
    names["optimizer"].step()
    assert names["head"].state.counts[0] == 1


def test_the_jax_lines_about_heads() -> None:
    (code,) = snippets("docs/how-to/jax.md")
    params = {"head": {"w": jnp.ones((8, 3)), "b": jnp.zeros(3)}}
    names: dict[str, Any] = {"params": params, "features": lambda params, x: x}
    exec(code, names)
    arguments = jnp.ones((4, 8)), jnp.zeros(4, int), jnp.arange(4.0)
    memory = names["optimizer"].init(params)
    params, statistics, memory = names["step"](params, names["statistics"], memory, *arguments)
    assert statistics.counts[0] == 1


def test_the_lines_about_deep_pop_art() -> None:
    below, meet = snippets("docs/explanation/deep.md")
    from popart.torch import NormalizeGradient, PopArt, backpropagated_targets

    names: dict[str, Any] = {"head": PopArt(4, 3), "h": torch.randn(8, 4), "labels": torch.arange(8) % 3}
    names |= {
        "backpropagated_targets": backpropagated_targets,
        "cross_entropy": torch.nn.functional.cross_entropy,
    }
    exec(below, names)
    names["loss"].backward()
    assert names["head"].state.counts[0] == 1
    names |= {name: NormalizeGradient() for name in ("meet", "first", "second")}
    names |= {name: torch.nn.Linear(4, 1) for name in ("head_a", "head_b")}
    names |= {
        "trunk": torch.nn.Linear(4, 4),
        "x": torch.randn(8, 4),
        "loss_a": torch.sum,
        "loss_b": torch.sum,
    }
    exec(meet, names)
    names["loss"].backward()
    assert names["meet"].state.counts[0] == 1


def test_the_lines_about_layers_of_your_own() -> None:
    first, batches = snippets("docs/how-to/own-layers.md")
    y = np.arange(8.0)
    names: dict[str, Any] = {"targets": y, "mean": np.mean, "h": np.ones((3, 8))}
    names |= {"weight": np.ones((1, 3)), "bias": np.zeros(1), "popart": popart}
    exec(first, names)
    assert names["loss"] > 0
    names |= {"valid": y > 2, "importance": y, "tasks": 2, "task": np.arange(8) % 2}
    exec(batches, names)
    assert (names["state"].counts[0] == 1).all()


def test_the_lines_about_rules() -> None:
    (code,) = snippets("docs/how-to/choosing-a-rule.md")
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["head"].art == popart.Percentiles(beta=1e-3, p=0.9)


def test_the_experiment_of_the_laboratory_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its three modules are a command that runs, finds what it claims, and can be plotted."""
    from popart.lab import analysis, cli

    package = "popart.lab.experiments.bounds"
    for name, code in zip(("config", "run", "analysis"), snippets("docs/explanation/lab.md"), strict=True):
        module = ModuleType(f"{package}.{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(code, vars(module))
    commands, analyses = re.findall(
        r'`"bounds": "(popart\.[\w.:]+)"`', (ROOT / "docs/explanation/lab.md").read_text("utf-8")
    )
    monkeypatch.setitem(cli.COMMANDS, "bounds", commands)
    monkeypatch.setitem(analysis.ANALYSES, "bounds", analyses)
    out = tmp_path / "bounds"
    cli.main(["bounds", "--betas", "0.01", "0.1", "--out", str(out)])
    cli.main(["plot", str(out)])
    *_, last = capsys.readouterr().out.splitlines()
    assert last == str(out)
    (finding,) = analysis.analyse(analysis.Page(out)).results()["findings"]
    assert finding["agrees"]
    assert finding["paper"] == "9.95, 3"


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
GENERATED = ("dqn.ipynb", "commands.md", "core.md", "torch.md", "jax.md", "alternatives.md")
"""Files that are made when the site is built, or have headings that are: the strict build checks these."""


@pytest.mark.parametrize("page", [str(path.relative_to(ROOT)) for path in PAGES])
def test_links_lead_to_files_and_headings_that_exist(page: str) -> None:
    here = ROOT / page
    text = re.sub(r"```.*?```", "", here.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, heading = link.partition("#")
        target = here.parent / path if path else here
        if target.name in GENERATED:
            continue
        assert target.exists(), link
        if heading:
            assert heading in anchors(target), link


def anchors(page: Path) -> set[str]:
    """Return the names of the headings of a page in links, as MkDocs and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
