"""Each extra, installed from the wheel into an empty environment, is enough for what it is for.

`uv` installs from the package index that pip is configured for, in the versions of `constraints.txt` and
with the build of PyTorch that these tests run with. Left out are `dev`, which these tests run with, and
`cuda`, which is gigabytes and needs a GPU.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import popart
from tests.test_package import EXTRAS, ROOT, run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("extras")]

TORCH = """
import torch
from popart.torch import PopArt

torch.manual_seed(0)
head = PopArt(4, 1, beta=0.1)
optimizer = torch.optim.Adam(head.parameters(), 0.1)
for _ in range(200):
    x = torch.randn(32, 4)
    y = head.update(1e6 * x[:, :1] + 5e6, optimizer=optimizer)
    loss = (head.normalized(x) - y).square().mean()
    optimizer.zero_grad(), loss.backward(), optimizer.step()
assert loss < 0.01
assert (head(x) - (1e6 * x[:, :1] + 5e6)).abs().max() < 1e6
"""

JAX = """
import jax.numpy as jnp, optax
import popart, popart.jax

art, params = popart.Moments(), {"head": {"kernel": jnp.ones((4, 1)), "bias": jnp.zeros(1)}}
optimizer = popart.jax.rescale_optimizer(optax.adam(0.1), head=lambda params: params["head"])
state = popart.jax.init(art, params["head"])
state, head, y, change = popart.jax.step(art, state, params["head"], jnp.array([[1e6], [3e6]]))
assert y.tolist() == [[-1.0], [1.0]]
updates, _ = optimizer.update({"head": head}, optimizer.init(params), {"head": head}, change=change)
optax.apply_updates({"head": head}, updates)
"""

SB3 = """
from popart.sb3 import PopArtPPO

model = PopArtPPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_epochs=1).learn(64)
assert model.policy.value_net.sigma > 0
model.save("model")
assert PopArtPPO.load("model").policy.value_net.sigma == model.policy.value_net.sigma
"""

SKLEARN = """
import numpy as np
from popart.sklearn import PopArtRegressor

x = np.random.default_rng(0).normal(size=(500, 3))
y = 1e9 * np.tanh(x[:, 0]) + 5e9
assert PopArtRegressor(random_state=0).fit(x, y).score(x, y) > 0.9
"""

TORCHRL = """
import torch
from popart.torch import PopArt
from popart.torchrl import PopArtClipPPOLoss, PopArtValueNorm

head = PopArt(4, 1, beta=0.1)
norm = PopArtValueNorm(head, torch.optim.Adam(head.parameters()))
norm.update(torch.tensor([[1e6], [3e6]]))
assert norm.normalize(torch.tensor([[3e6]])).tolist() == [[1.0]]
"""

RAY = """
import ray
import popart

@ray.remote
def scale(targets):
    rule = popart.Moments()
    return float(rule.affine(rule.update(rule.init(), targets)).scale)

ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
assert ray.get(scale.remote([1e6, 3e6])) == 1e6
"""

PYTHON, SITE = "{bin}/python", "{folder}/site"
USES: dict[str, list[list[str]]] = {
    "torch": [[PYTHON, "-c", TORCH]],
    "jax": [[PYTHON, "-c", JAX]],
    "lab": [["{bin}/popart", "--version"], ["{bin}/popart", "paper", "--out", "paper"]],
    "sb3": [[PYTHON, "-c", SB3]],
    "sklearn": [[PYTHON, "-c", SKLEARN]],
    "torchrl": [[PYTHON, "-c", TORCHRL]],
    "ray": [[PYTHON, "-c", RAY]],
    "docs": [["{bin}/mkdocs", "build", "--strict", "-f", f"{ROOT}/mkdocs.yml", "--site-dir", SITE]],
    "bench": [
        [PYTHON, "-m", "benchmarks.head", "head.csv", "--network", "small", "--seconds", "0.1"],
        [PYTHON, "-c", "import rlax; rlax.popart"],
    ],
    "examples": [
        [PYTHON, f"{ROOT}/examples/dqn.py", "--steps", "700"],
        [PYTHON, f"{ROOT}/examples/dqn_jax.py", "--help"],
    ],
}
"""Short programs that use what an extra is for."""

OPTIONS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}
"""Options of pip that say where packages come from, and the variables of uv that mean the same."""


def settings_of_uv() -> dict[str, str]:
    """Return variables that make uv look for packages where pip does, in any of its indexes."""
    lines = run(sys.executable, "-m", "pip", "config", "list", cwd=ROOT).stdout.splitlines()
    found = (re.fullmatch(r"[^.]*\.([\w-]+)='(.*)'", line) for line in lines)
    options = {match[1]: " ".join(match[2].split()) for match in found if match}
    places = {uv: options[pip] for pip, uv in OPTIONS.items() if pip in options}
    if "UV_FIND_LINKS" in places:
        places["UV_FIND_LINKS"] = places["UV_FIND_LINKS"].replace(" ", ",")
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **places}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, cwd=ROOT)
    (path,) = out.iterdir()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed at once: pytest would keep the environments of three runs."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def uv(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "uv", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings_of_uv())
    assert ended.returncode == 0, ended.stderr


def pins(folder: Path) -> Path:
    """Write the constraints, with the exact build of PyTorch that is installed here."""
    text = (ROOT / "constraints.txt").read_text("utf-8")
    build = importlib.metadata.version("torch")
    path = folder / "constraints.txt"
    path.write_text(re.sub(r"^torch==.*$", f"torch=={build}", text, count=1, flags=re.MULTILINE))
    assert f"\ntorch=={build}\n" in path.read_text()
    return path


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"cuda", "dev"}))
def test_an_extra_in_an_empty_environment_is_enough_for_its_purpose(
    extra: str, wheel: Path, folder: Path
) -> None:
    environment = folder / "environment"
    uv("venv", "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    installed = f"popart-learn[{extra}] @ {wheel.as_uri()}"
    uv("pip", "install", "--python", python, "--constraint", pins(folder), installed)
    uv("pip", "check", "--python", python)
    if extra == "bench":
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    for use in USES[extra]:
        command = [part.replace("{bin}", str(python.parent)).replace("{folder}", str(folder)) for part in use]
        said = run(*command, cwd=folder).stdout
        assert "--version" not in use or said == f"popart {popart.__version__}\n"
