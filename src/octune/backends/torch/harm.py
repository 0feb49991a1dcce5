"""How much every op in every scheme changes the model's output, in one forward and backward pass and one more
forward.

To first order an error dy at an op's output moves the model's output by J dy. With a random vector v, E[(v .
J dy)^2] = |J dy|^2, and v . J comes out of one backward pass for all ops at once. So no op is ever quantized
in the running model: its int8 kernel only computes what it would have returned for the fp32 input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from octune.backends.batches import Inputs
from octune.backends.torch.batches import named_tensors
from octune.backends.torch.hooks import hooks
from octune.backends.torch.layers import Layer
from octune.harm import output_spread
from octune.plan import Scheme

__all__ = ["first_order_harm"]

DRAWS = 4
Key = tuple[str, Scheme]


def first_order_harm(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    candidates: Mapping[str, Sequence[Scheme]],
    make: Callable[[str, Scheme], Layer],
    calls: Sequence[Inputs],
) -> dict[Key, float] | None:
    """Relative mean squared output change by (op, scheme), or None if the model cannot be differentiated.

    Gradients are those of all ``modules``, whichever of them are candidates: noise is drawn for every output
    that depends on one, and must be the same for the same model and data. ``make`` returns the layer of an
    op. Each is made when its op is reached and released again: all layers of a large model at once are more
    than the model itself.
    """
    generator = torch.Generator().manual_seed(0)
    totals: dict[Key, float] = {
        (name, scheme): 0.0 for name, schemes in candidates.items() for scheme in schemes
    }
    variance = 0.0
    for call in calls:
        try:
            gradients, spread = _gradients(model, modules, call, generator)
        except RuntimeError:
            return None
        if any(gradient is None for draw in gradients for gradient in draw.values()):
            return None
        variance += spread
        for key, value in _errors(model, modules, candidates, make, call, gradients).items():
            totals[key] += value
    if variance <= 0:
        return None
    # Sums over samples on both sides: the number of samples cancels.
    return {key: value / variance for key, value in totals.items()}


def _gradients(
    model: nn.Module, modules: Mapping[str, nn.Module], call: Inputs, generator: torch.Generator
) -> tuple[list[dict[str, list[torch.Tensor]]], float]:
    outputs: dict[str, list[torch.Tensor]] = {name: [] for name in modules}

    def keep(name: str) -> Any:
        def keep_one(output: torch.Tensor) -> torch.Tensor:
            kept = output if output.requires_grad else output.detach().requires_grad_()
            outputs[name].append(kept)
            return kept.clone()  # what follows may write into it

        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            _parts(output)  # or none of it could be seen
            return tree_map_only(torch.Tensor, keep_one, output)

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    with hooks(handles), torch.enable_grad():
        result = _floats(call(model))
    spread = sum(output_spread(out.detach().float().numpy()) for out in result)
    flat = [(name, tensor) for name, tensors in outputs.items() for tensor in tensors]
    draws = []
    for draw in range(DRAWS):
        target = sum(
            ((out * torch.randn(out.shape, generator=generator)).sum() for out in result),
            start=torch.zeros(()),
        )
        found = torch.autograd.grad(
            target, [tensor for _, tensor in flat], retain_graph=draw + 1 < DRAWS, allow_unused=True
        )
        by_name: dict[str, list[torch.Tensor]] = {name: [] for name in modules}
        for (name, tensor), gradient in zip(flat, found, strict=True):
            by_name[name].append(torch.zeros_like(tensor) if gradient is None else gradient)
        draws.append(by_name)
    return draws, spread


def _errors(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    candidates: Mapping[str, Sequence[Scheme]],
    make: Callable[[str, Scheme], Layer],
    call: Inputs,
    gradients: list[dict[str, list[torch.Tensor]]],
) -> dict[Key, float]:
    """Compute what every int8 kernel would have returned, and weight the difference by the gradient."""
    sums: dict[Key, torch.Tensor] = {}
    visits: dict[str, int] = dict.fromkeys(candidates, 0)

    def compare(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            wanted = _parts(output)
            # Per sample where the first dimension is the batch, else in one sum: v is independent over
            # samples.
            rows = call.batch_size if all(len(part) == call.batch_size for part in wanted) else 1

            def by_row(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
                return torch.cat([tensor.reshape(rows, -1) for tensor in tensors], dim=1)

            first = visits[name]
            visits[name] += len(wanted)
            weights = torch.stack([by_row(draw[name][first : visits[name]]) for draw in gradients], dim=1)
            for scheme in candidates[name]:
                got = _parts(make(name, scheme)(*args, **kwargs))
                errors = by_row([one - other for one, other in zip(got, wanted, strict=True)])
                parts = torch.bmm(weights, errors.unsqueeze(-1))
                known = sums.get((name, scheme))
                sums[name, scheme] = parts if known is None else known + parts

        return hook

    handles = [modules[name].register_forward_hook(compare(name), with_kwargs=True) for name in candidates]
    with hooks(handles), torch.no_grad():
        call(model)
    return {key: float(value.square().sum()) / DRAWS for key, value in sums.items()}


def _parts(output: Any) -> list[torch.Tensor]:
    """The tensors that a module returns: one, or that of an LSTM and its last states."""
    leaves = [leaf for leaf in tree_leaves(output) if leaf is not None]
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise RuntimeError("a module returns something other than tensors")
    return leaves


def _floats(outputs: Any) -> list[torch.Tensor]:
    values = named_tensors(outputs).values()
    found = [value for value in values if value.is_floating_point() and value.ndim > 0]
    if not found or not any(value.requires_grad for value in found):
        raise RuntimeError("the model's output cannot be differentiated")
    return [value for value in found if value.requires_grad]
