"""The README's and the guide's code runs as it stands."""

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart

ROOT = Path(__file__).parents[1]


def snippets(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def test_the_pytorch_lines_of_the_readme() -> None:
    code, _ = snippets("README.md")
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    h = torch.asarray(rng.normal(size=(16, 8)), dtype=torch.float32)
    names: dict[str, Any] = {"head": torch.nn.Linear(8, 1), "h": h}
    setup, step = code.split("new_state = ", 1)
    exec(setup, names)
    optimizer = torch.optim.SGD(names["head"].parameters(), lr=0.1)
    for _ in range(300):
        names["targets"] = 1e6 * (h[:, 0] + 3)
        exec("new_state = " + step, names)
        optimizer.zero_grad()
        names["loss"].backward()
        optimizer.step()
    error = (names["prediction"][:, 0] - names["targets"]).detach()
    assert float(error.abs().max()) < 1e5


def test_the_jax_lines_of_the_readme() -> None:
    _, code = snippets("README.md")
    names: dict[str, Any] = {"kernel": jnp.ones((8, 1)), "bias": jnp.zeros(1)}
    exec(code, names)
    y = jnp.arange(16.0)
    state, kernel, bias, normalized = names["pop_art"](names["state"], names["kernel"], names["bias"], y)
    assert float(normalized.std()) == pytest.approx(1, abs=1e-5)
    _, kernel, bias, _ = names["pop_art"](state, kernel, bias, 100 * y)
    assert kernel.shape == (8, 1)
    assert float(kernel.max()) < 1


def test_the_lines_of_the_guide() -> None:
    first, batches, replicas = snippets("docs/guide.md")
    y = np.arange(8.0)
    names: dict[str, Any] = {"targets": y, "mean": np.mean, "h": np.ones((3, 8))}
    names |= {"weight": np.ones((1, 3)), "bias": np.zeros(1), "popart": popart}
    exec(first, names)
    assert names["loss"] > 0
    names |= {"valid": y > 2, "importance": y, "tasks": 2, "task": np.arange(8) % 2}
    exec(batches, names)
    assert (names["state"].counts[0] == 1).all()
    art = names["art"]
    names |= {
        "state": art.init(),
        "my_part_of_the_batch": y,
        "all_gather": lambda summary: [summary, summary],
    }
    exec(replicas, names)
    np.testing.assert_allclose(art.affine(names["state"]).shift, y.mean())
