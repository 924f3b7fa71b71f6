"""The ways in which the core is run, behind one interface: a step, a carry, and inputs."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

DEVICE = os.environ.get("POPART_TEST_DEVICE", "cpu")
"""Device of PyTorch's tensors; JAX uses its default device."""

Step = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Backend:
    """A module, a precision, and how a step is called."""

    module: str
    dtype: str
    mode: str = "eager"
    x64: bool = False

    @property
    def name(self) -> str:
        return f"{self.module}-{self.mode}-{self.dtype}{'-x64' if self.x64 else ''}"

    @property
    def eps(self) -> float:
        return float(np.finfo(self.dtype).eps)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with jax.enable_x64(self.x64):
            yield

    def array(self, x: Any) -> Any:
        """x as an array here: floats in this precision, the rest as they are."""
        if isinstance(x, torch.Tensor):
            return x
        x = np.asarray(x)
        x = x.astype(self.dtype) if np.issubdtype(x.dtype, np.floating) else x
        if self.module == "torch":
            return torch.asarray(x, device=DEVICE)
        return jnp.asarray(x) if self.module == "jax" else x

    def run(self, step: Step, carry: Any, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Call `step(carry, x)` for each input; the last carry and all outputs, as NumPy arrays."""
        with self.active():
            carry = _tree(self.array, carry)
            if self.mode != "scan":
                inputs = [_tree(self.array, x) for x in inputs]
            carry, outputs = getattr(self, f"_{self.mode}")(step, carry, inputs)
            return _tree(to_numpy, carry), [_tree(to_numpy, x) for x in outputs]

    def call(self, f: Callable[..., Any], *arguments: Any) -> Any:
        """Return the results of one call as NumPy arrays."""
        return self.run(lambda carry, x: (carry, f(*x)), (np.zeros(()),), [arguments])[1][0]

    def _eager(self, step: Step, carry: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
        outputs = []
        for x in inputs:
            carry, out = step(carry, x)
            outputs.append(out)
        return carry, outputs

    def _jit(self, step: Step, carry: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
        return self._eager(jax.jit(step), carry, inputs)

    def _vmap(self, step: Step, carry: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
        """Beside another stream, which has the same inputs in reverse order."""
        pairs = [_tree(lambda *x: jnp.stack(x), a, b) for a, b in zip(inputs, reversed(inputs), strict=True)]
        carry, outputs = self._jit(jax.vmap(step), _tree(lambda x: jnp.stack((x, x)), carry), pairs)
        return _tree(lambda x: x[0], carry), [_tree(lambda x: x[0], out) for out in outputs]

    def _scan(self, step: Step, carry: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
        stacked = _tree(lambda *x: self.array(np.stack(x)), *inputs)
        carry, outputs = jax.lax.scan(step, carry, stacked)
        outputs = _tree(np.asarray, outputs)
        return carry, [_tree(lambda x, i=i: x[i], outputs) for i in range(len(inputs))]

    def _compile(self, step: Step, carry: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
        with torch._dynamo.config.patch(error_on_recompile=True):  # pyright: ignore
            return self._eager(_compiled(step), carry, inputs)


@functools.lru_cache(maxsize=1)
def _compiled(step: Step) -> Step:
    """Compiled by PyTorch, which is done once for a step that is run several times in a row."""
    torch.compiler.reset()
    return torch.compile(step, fullgraph=True)


def _tree(f: Callable[..., Any], *trees: Any) -> Any:
    return jax.tree.map(f, *trees)


def sharing_what_is_compiled() -> dict[str, str]:
    """The environment of a process that finds what JAX has compiled in tests, and leaves what it compiles."""
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore
    cache = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return {**os.environ, **(cache if folder else {})}


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(x.detach().cpu() if isinstance(x, torch.Tensor) else x)


REFERENCE = Backend("numpy", "float64")

BACKENDS = [
    REFERENCE,
    Backend("numpy", "float32"),
    *(Backend("jax", "float32", mode) for mode in ("eager", "jit", "vmap", "scan")),
    *(Backend("jax", "float64", mode, x64=True) for mode in ("eager", "scan")),  # which compiles
    Backend("jax", "float32", "jit", x64=True),
    Backend("torch", "float32"),
    Backend("torch", "float64"),
    Backend("torch", "float32", "compile"),
]

FLOAT32 = [
    Backend("numpy", "float32"),
    Backend("jax", "float32", "jit"),
    Backend("torch", "float32"),
    Backend("torch", "float32", "compile"),
]
"""One backend of each library and mode, for claims about float32."""
