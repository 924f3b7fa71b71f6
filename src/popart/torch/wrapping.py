"""Pop-Art in place of a linear layer of an existing network."""

from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from popart.rules import Rule
from popart.torch.heads import PopArt

READ_WEIGHTS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules that compute with the weights of their linear layers, without a call of these layers."""


def wrap(model: nn.Module, layer: str | nn.Module, art: Rule[Any] | None = None, **settings: Any) -> PopArt:
    """Put a head in place of a linear layer of a network, and return it.

    The head has the parameters of the layer: the same objects, so that an optimizer that holds them
    trains the head. It takes the layer's place wherever the layer is registered in the model. Modules that
    read the weight of a layer without calling it, such as `torch.nn.MultiheadAttention`, are refused.

        head = wrap(model, "q_net.2", beta=1e-3)

    Args:
        model: The network that contains the layer.
        layer: The layer, a `torch.nn.Linear`, or its name as in `model.named_modules()`.
        art: The rule that measures targets; `Moments()` by default.
        settings: Other arguments of `PopArt.from_linear`. `keep=True` preserves the outputs of a trained
            layer from the first update on; by default outputs are 0 until the first targets are adopted.
    """
    found = _named(model, layer) if isinstance(layer, str) else layer
    places = [name for name, part in model.named_modules(remove_duplicate=False) if part is found and name]
    if not places:
        raise ValueError(f"layer is {layer!r}; it must be inside of model, a {type(model).__name__}")
    for place in places:
        _check_is_called(model.get_submodule(place.rpartition(".")[0]), found, place)
    head = PopArt.from_linear(found, art, **settings)  # pyright: ignore[reportArgumentType]
    for place in places:
        parent, _, name = place.rpartition(".")
        model.get_submodule(parent).register_module(name, head)
    return head


def _check_is_called(parent: nn.Module, layer: nn.Module, place: str) -> None:
    """Raise if the parent reads the weight of the layer itself, because the scale and shift are not in it."""
    if isinstance(parent, READ_WEIGHTS) or isinstance(layer, NonDynamicallyQuantizableLinear):
        raise ValueError(
            f"layer is {place!r} of a {type(parent).__name__}, which reads the weight of this layer and does "
            "not call it: its outputs would be in normalised units. Wrap a layer that is called, or put "
            "PopArt.identity(outputs) on top of the model"
        )


def _named(model: nn.Module, name: str) -> nn.Module:
    parts = dict(model.named_modules(remove_duplicate=False))
    if name not in parts or not name:
        linear = [repr(key) for key, part in parts.items() if isinstance(part, nn.Linear) and key]
        raise ValueError(
            f"layer is {name!r}; the linear layers of the model are {', '.join(linear) or 'none'}"
        )
    return parts[name]
