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

ROOT = Path(__file__).parents[1]


def snippets(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def network(rng: np.random.Generator) -> dict[str, Any]:
    """What a reader has at hand: features, a batch of transitions, a target network."""
    torch.manual_seed(0)
    h = torch.asarray(rng.normal(size=(16, 512)), dtype=torch.float32)
    action = torch.asarray(rng.integers(0, 18, 16))
    return {"h": h, "action": action, "reward": 1e6 * (h[:, 0] + 3), "discount": 0.0, "next_state": h}


def test_the_pytorch_lines_of_the_readme() -> None:
    code, _ = snippets("README.md")
    names = network(np.random.default_rng(0))
    setup, step = code.split("\ny = ", 1)
    exec(setup, names)
    names["target_network"] = names["head"]
    optimizer = torch.optim.SGD(names["head"].parameters(), 0.01)
    for _ in range(300):
        exec("y = " + step, names)
        optimizer.zero_grad()
        names["loss"].backward()
        optimizer.step()
    error = (names["head"](names["h"], index=names["action"]) - names["reward"]).detach()
    assert float(error.abs().max()) < 1e5


def test_the_jax_lines_of_the_readme() -> None:
    _, code = snippets("README.md")
    names: dict[str, Any] = {"head": {"w": jnp.ones((8, 1)), "b": jnp.zeros(1)}, "h": jnp.ones((2, 8))}
    exec(code, names)
    assert not names["values"].any()
    y = jnp.arange(16.0)
    statistics, head, normalized = names["pop_art"](names["statistics"], names["head"], y)
    assert float(normalized.std()) == pytest.approx(1, abs=1e-5)
    _, head, _ = names["pop_art"](statistics, head, 100 * y)
    assert float(head["w"].max()) < 1


def test_the_pytorch_lines_about_heads() -> None:
    code, _ = snippets("docs/heads.md")
    names = network(np.random.default_rng(0)) | {
        "body": torch.nn.Linear(512, 512),
        "state": torch.ones(16, 512),
    }
    names["target"] = lambda s: torch.zeros(16, 18)
    exec(code, names)
    names["loss"].backward()
    names["optimizer"].step()
    assert names["head"].state.counts[0] == 1


def test_the_jax_lines_about_heads() -> None:
    _, code = snippets("docs/heads.md")
    params = {"head": {"w": jnp.ones((8, 3)), "b": jnp.zeros(3)}}
    names: dict[str, Any] = {"params": params, "features": lambda params, x: x}
    exec(code, names)
    arguments = jnp.ones((4, 8)), jnp.zeros(4, int), jnp.arange(4.0)
    memory = names["optimizer"].init(params)
    params, statistics, memory = names["step"](params, names["statistics"], memory, *arguments)
    assert statistics.counts[0] == 1


def test_the_lines_about_deep_pop_art() -> None:
    below, meet = snippets("docs/deep.md")
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


def test_the_lines_of_the_guide() -> None:
    first, batches, *_ = snippets("docs/guide.md")
    y = np.arange(8.0)
    names: dict[str, Any] = {"targets": y, "mean": np.mean, "h": np.ones((3, 8))}
    names |= {"weight": np.ones((1, 3)), "bias": np.zeros(1), "popart": popart}
    exec(first, names)
    assert names["loss"] > 0
    names |= {"valid": y > 2, "importance": y, "tasks": 2, "task": np.arange(8) % 2}
    exec(batches, names)
    assert (names["state"].counts[0] == 1).all()


def test_the_experiment_of_the_laboratory_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its three modules are a command that runs, finds what it claims, and can be plotted."""
    from popart.lab import analysis, cli

    package = "popart.lab.experiments.bounds"
    for name, code in zip(("config", "run", "analysis"), snippets("docs/lab.md"), strict=True):
        module = ModuleType(f"{package}.{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(code, vars(module))
    commands, analyses = re.findall(
        r'`"bounds": "(popart\.[\w.:]+)"`', (ROOT / "docs/lab.md").read_text("utf-8")
    )
    monkeypatch.setitem(cli.COMMANDS, "bounds", commands)
    monkeypatch.setitem(analysis.ANALYSES, "bounds", analyses)
    out = tmp_path / "bounds"
    cli.main(["bounds", "--betas", "0.01", "0.1", "--out", str(out)])
    cli.main(["plot", str(out)])
    *_, last = capsys.readouterr().out.splitlines()
    assert last == str(out)
    (finding,) = analysis.analyse(out).results()["findings"]
    assert finding["agrees"]
    assert finding["paper"] == "9.95, 3"


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_to_files_and_headings_that_exist(page: str) -> None:
    here = ROOT / page
    text = re.sub(r"```.*?```", "", here.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, heading = link.partition("#")
        target = here.parent / path if path else here
        assert target.exists(), link
        if heading:
            assert heading in anchors(target), link


def anchors(page: Path) -> set[str]:
    """Return the names of the headings of a page in links, as MkDocs and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
