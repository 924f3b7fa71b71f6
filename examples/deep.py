"""Deep Pop-Art: unknown sizes below a soft-max and where two losses meet.

(a) A network learns to tell three spiral arms apart, by a cross-entropy that is multiplied by c, as
if costs were in cents or in millions. The layer below the soft-max gets its targets by back-propagation.
(b) The same network learns from a teacher's probabilities, of an unknown temperature: its logits are
multiplied by c. The layer gets its targets by inversion of the soft-max.
(c) One trunk with two linear heads learns two functions, by two losses, one of which is 10⁶ times larger.

    python examples/deep.py [FOLDER]

Every method has its best learning rate for c = 1, or for both losses together, and keeps it for all c. A
size is best removed where it enters:

- Normalised gradients remove any size of a loss, (a) and (c). They do not remove a small size of targets,
  (b): steps of size 1 are then too large.
- Pop-Art removes any size of targets, (b), and a large size of a loss, (a), though outputs are then large,
  too, and probabilities nearly 0 and 1. It does not remove a small size of a loss: a soft-max has a unit of
  its own, outputs must reach about 1, and much smaller steps are lost in their spread.
- Adam normalises the gradient of each weight, which is already a sum over both losses, (c).
"""

import argparse
import csv
import functools
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from rich.progress import track

import popart
import popart.deep
import popart.jax

Array = Any
Tree = Any
Source = Literal["classes", "teacher"]

CLASSES, HIDDEN, BATCH, STEPS, SEEDS = 3, 32, 32, 2000, 3
ALPHAS = 10.0 ** np.arange(-2.5, 2, 0.5)
SIZES = 10.0 ** np.arange(-6, 6.5, 1.5)
LOSSES = {"small": 1.0, "large": 1e6}
WINDOW = 100
COLOURS = {"SGD": "tab:red", "Adam": "0.55", "normalised gradients": "tab:purple", "Pop-Art": "forestgreen"}


class Method(NamedTuple):
    """The rules that normalise outputs of the last layer and incoming gradients; Fixed normalises nothing."""

    outputs: popart.Rule[Any] = popart.Fixed()
    gradients: popart.Rule[Any] = popart.Fixed()
    optimizer: Any = optax.sgd


METHODS = {
    "SGD": Method(),
    "Adam": Method(optimizer=optax.adam),
    "normalised gradients": Method(gradients=popart.Moments(1e-2, symmetric=True)),
    "Pop-Art": Method(outputs=popart.Moments(1e-2)),
}


def network(rng: np.random.Generator, seeds: int, **heads: int) -> Tree:
    def dense(n: int, m: int) -> Tree:
        kernel = rng.normal(0, n**-0.5, (seeds, n, m))
        return {"kernel": jnp.array(kernel), "bias": jnp.zeros((seeds, m))}

    trunk = [dense(2, HIDDEN), dense(HIDDEN, HIDDEN)]
    return {"trunk": trunk, **{name: dense(HIDDEN, outputs) for name, outputs in heads.items()}}


def features(params: Tree, x: Array) -> Array:
    for layer in params["trunk"]:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x


def spirals(rng: np.random.Generator, *shape: int) -> tuple[Array, Array]:
    """Return points on three spiral arms, and logits that are largest for the right arm."""
    turn = (rng.integers(CLASSES, size=shape) + rng.uniform(-0.45, 0.45, shape)) / CLASSES
    radius = rng.uniform(size=shape) ** 0.5
    angle = 2 * np.pi * (turn + 0.75 * radius)
    x = 2 * radius[..., None] * np.stack((np.cos(angle), np.sin(angle)), -1)
    return jnp.array(x), jnp.array(3 * np.cos(2 * np.pi * (turn[..., None] - np.arange(CLASSES) / CLASSES)))


def gradient_of(z: Array, logits: Array, c: Array, taught: Array) -> Array:
    """Return the gradient of each example's loss with respect to the outputs below the soft-max."""
    classes = jax.nn.one_hot(logits.argmax(-1), CLASSES)
    down = jax.grad(lambda z: -c * (classes * jax.nn.log_softmax(z)).sum())(z)
    # So little smoothing counts only where single precision soon has probabilities of 0, c above 10.
    inverse = popart.deep.softmax_targets(jax.nn.softmax(c * logits), smoothing=1e-30)
    # z - inverse is the gradient of the squared loss: a step down it, from z, arrives at the inverse.
    # (To compute both and take one is faster than to compile twice.)
    return jnp.where(taught, z - inverse, down)


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.vmap, in_axes=(None, 0, 0, None, None, None))
@functools.partial(jax.vmap, in_axes=(None, None, None, 0, 0, None))
def accuracy(method: Method, params: Tree, data: Any, alpha: Array, c: Array, taught: Array) -> Array:
    art, (train, test) = method.outputs, data

    def loss(params: Tree, x: Array, targets: Array) -> Array:
        g = popart.jax.normalized(params["head"], features(params, x))
        return 0.5 * ((g - targets) ** 2).sum(-1).mean()

    def step(carry: Any, now: Any) -> tuple[Any, None]:
        (params, state, seen), (x, logits, alpha) = carry, now
        z = popart.jax.values(art, state, params["head"], features(params, x))
        gradient = gradient_of(z, logits, c, taught)
        seen = method.gradients.update(seen, gradient)
        targets = popart.deep.step_targets(z, method.gradients.affine(seen).normalize(gradient))
        state, head, targets, _ = popart.jax.step(art, state, params["head"], targets)
        params = {**params, "head": head}
        slopes = jax.grad(loss)(params, x, targets)
        return (jax.tree.map(lambda p, slope: p - alpha * slope, params, slopes), state, seen), None

    start = params, popart.jax.init(art, params["head"]), method.gradients.init(like=c)
    (params, state, _), _ = jax.lax.scan(step, start, (*train, alpha * jnp.linspace(1, 0, len(train[0]))))
    z = popart.jax.values(art, state, params["head"], features(params, test[0]))
    return (z.argmax(-1) == test[1].argmax(-1)).mean()


def classify(
    method: str, source: Source, alphas: Array, sizes: Array, steps: int = STEPS, seeds: int = SEEDS
) -> Array:
    """Return accuracies of trained networks, (seeds, runs), for learning rates and sizes c, each (runs,)."""
    rng, taught = np.random.default_rng(0), jnp.array(source == "teacher")
    params = network(rng, seeds, head=CLASSES)
    data = spirals(rng, seeds, steps, BATCH), spirals(rng, seeds, 1000)
    alphas, sizes = (jnp.array(x, jnp.float32) for x in np.broadcast_arrays(alphas, sizes))
    return np.asarray(accuracy(METHODS[method], params, data, alphas, sizes, taught))


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.vmap, in_axes=(None, 0, 0, None))
@functools.partial(jax.vmap, in_axes=(None, None, None, 0))
def squared_errors(method: Method, params: Tree, data: Any, alpha: Array) -> Array:
    art, widths = method.gradients, {"small": 1, "large": 1, "trunk": HIDDEN}
    optimizer = method.optimizer(optax.linear_schedule(alpha, 0.0, len(data[0])))

    def loss(params: Tree, probes: Tree, states: Tree, x: Array, y: Array) -> tuple[Array, Array]:
        def normalise(name: str, output: Array) -> Array:
            return popart.jax.normalize_gradient(output, art, states[name], probes[name])

        # Above each head, so that it too gets gradients of size 1, and again below both, where they merge.
        h = normalise("trunk", features(params, x))
        z = [normalise(name, popart.jax.normalized(params[name], h)) for name in LOSSES]
        squares = (jnp.concatenate(z, -1) - y) ** 2
        # Summed over the batch, because the 1/n of a mean would be normalised away.
        return 0.5 * (squares @ jnp.array(list(LOSSES.values()))).sum(), squares.mean(0)

    def step(carry: Any, now: Any) -> tuple[Any, Array]:
        params, states, memory = carry
        probes = {name: jnp.zeros((BATCH, width)) for name, width in widths.items()}
        (slopes, seen), squares = jax.grad(loss, (0, 1), has_aux=True)(params, probes, states, *now)
        states = {name: art.update(states[name], seen[name]) for name in widths}
        updates, memory = optimizer.update(jax.tree.map(lambda slope: slope / BATCH, slopes), memory)
        return (optax.apply_updates(params, updates), states, memory), squares

    states = {name: art.init(like=alpha) for name in widths}
    return jax.lax.scan(step, (params, states, optimizer.init(params)), data)[1]


def two_losses(method: str, alphas: Array, steps: int = STEPS, seeds: int = SEEDS) -> Array:
    """Return errors before updates, relative to the targets, (seeds, alphas, steps / WINDOW, losses)."""
    rng = np.random.default_rng(0)
    params = network(rng, seeds, small=1, large=1)
    x = rng.uniform(-1.5, 1.5, (seeds, steps, BATCH, 2))
    y = 2**0.5 * np.sin(x @ np.array([[3, 2], [1, -3]]) + (0, np.pi / 2))
    squares = squared_errors(METHODS[method], params, (jnp.array(x), jnp.array(y)), jnp.array(alphas))
    squares = np.fmin(squares, 1e12)  # Diverged errors may be NaN.
    return np.sqrt(squares.reshape(seeds, len(alphas), -1, WINDOW, len(LOSSES)).mean(3))


class Curve(NamedTuple):
    """A line of the figure, y: (seeds, x), with the best learning rate."""

    panel: str
    method: str
    alpha: float
    x: Array
    y: Array


def classifiers(method: str) -> list[Curve]:
    curves = []
    for source in get_args(Source):
        alpha = float(ALPHAS[classify(method, source, ALPHAS, 1.0).mean(0).argmax()])
        curves.append(Curve(source, method, alpha, SIZES, 100 * classify(method, source, alpha, SIZES)))
    return curves


def shared_trunks(method: str) -> list[Curve]:
    # Larger learning rates diverge with SGD, whose learning rate has a unit, and do not help the others.
    alphas = ALPHAS / (max(LOSSES.values()) if method == "SGD" else 10)
    errors = two_losses(method, alphas)
    best = int(errors[:, :, -1].mean((0, 2)).argmin())
    x = WINDOW * (np.arange(errors.shape[2]) + 0.5)
    return [Curve(name, method, alphas[best], x, errors[:, best, :, i]) for i, name in enumerate(LOSSES)]


def draw(curves: list[Curve], folder: Path) -> None:
    mpl.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    plt.rcParams.update({"font.size": 8, "axes.titlesize": 8.5})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    figure, (a, b, c) = plt.subplots(1, 3, figsize=(7, 2.6))
    styles = {"small": "--", "large": "-"}
    for panel, method, _, x, y in curves:
        axes = {"classes": a, "teacher": b}.get(panel, c)
        marker = {} if axes is c else {"marker": "o", "ms": 2.5}
        axes.plot(x, np.median(y, 0), styles.get(panel, "-"), color=COLOURS[method], lw=1.2, **marker)
        axes.fill_between(x, y.min(0), y.max(0), color=COLOURS[method], alpha=0.15, lw=0)
    for axes in (a, b):
        axes.set(xscale="log", xticks=10.0 ** np.arange(-6, 7, 3), ylim=(20, 103), ylabel="accuracy (%)")
        axes.axhline(100 / CLASSES, color="0.6", lw=0.7, ls=":", zorder=0)
        axes.text(1e6, 32, "chance", ha="right", va="top", color="0.5", fontsize=7)
    a.set(title="(a) classes, by back-propagation", xlabel="loss multiplied by c")
    b.set(title="(b) a teacher, by inversion", xlabel="teacher's logits multiplied by c")
    c.set(title="(c) two losses, one trunk", xlabel="updates", ylabel="RMSE / size of the targets")
    c.set(xscale="log", yscale="log", ylim=(0.015, 1.6))
    lines = [Line2D([], [], color="0.2", ls=style, lw=1) for style in styles.values()]
    c.legend(lines, ("loss × 1", "loss × 10⁶"), frameon=False, loc="lower left")
    lines = [Line2D([], [], color=colour, lw=1.5) for colour in COLOURS.values()]
    figure.legend(lines, COLOURS, frameon=False, ncols=4, loc="upper center")
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    for suffix in ("svg", "png"):
        figure.savefig(folder / f"deep.{suffix}", dpi=200)


def write(curves: list[Curve], path: Path) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("panel", "method", "alpha", "x", "lowest", "median", "highest"))
        for panel, method, alpha, x, y in curves:
            for row in zip(x, y.min(0), np.median(y, 0), y.max(0), strict=True):
                table.writerow((panel, method, *(f"{value:.4g}" for value in (alpha, *row))))


def main() -> None:
    parser = argparse.ArgumentParser(description="Deep Pop-Art: below a soft-max, and where two losses meet.")
    parser.add_argument(
        "folder", nargs="?", default="runs/deep", type=Path, help="folder of figure and table"
    )
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)

    jobs = [(classifiers, method) for method in ("SGD", "normalised gradients", "Pop-Art")]
    jobs += [(shared_trunks, method) for method in ("SGD", "Adam", "normalised gradients")]
    curves = [curve for job, method in track(jobs, "Learning") for curve in job(method)]
    write(curves, folder / "deep.csv")
    draw(curves, folder)
    print("Least accuracy (%) for any c, and least error at any time, each the median of the seeds:")
    for panel in (*get_args(Source), *LOSSES):
        least = (f"{x.method} {np.median(x.y, 0).min():.3g}" for x in curves if x.panel == panel)
        print(f"  {panel}:", ", ".join(least))
    print(f"The figure is in {folder / 'deep.png'}")


if __name__ == "__main__":
    main()
