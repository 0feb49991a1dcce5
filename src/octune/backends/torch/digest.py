"""Which exported programs are compiled to the same native code: a digest of all that the compiler sees.

digest_of_program(program, options)         # equal digests: equal code, weights included
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule

import octune
from octune.machine import probe_machine

__all__ = ["digest_of_program"]


def digest_of_program(program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> str | None:
    """The graph with the types and sizes in it, every weight, the sizes of the example (code is shaped by
    them, though it takes others), the CPU and the number of threads, versions, and the compiler's options.
    None where something has no content that can be read.
    """
    digest = hashlib.sha256()
    for part in _surroundings(options), _structure(program):
        for line in part:
            digest.update(f"{line}\n".encode())
    for name, value in sorted({**program.state_dict, **program.constants}.items()):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            return None
        digest.update(f"{name} {_shape(value)}\n".encode())
        plain = value.detach().contiguous().reshape(-1)
        digest.update(plain.view(torch.uint8).numpy().data if plain.numel() else b"")
    return digest.hexdigest()


def _surroundings(options: Mapping[str, Any]) -> list[Any]:
    asked = {name: value for name, value in os.environ.items() if name.startswith("TORCHINDUCTOR_")}
    return [
        octune.__version__,
        torch.__version__,
        probe_machine().to_json(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        sorted(options.items()),
        sorted(asked.items()),
    ]


def _structure(program: torch.export.ExportedProgram) -> list[Any]:
    sizes = sorted(map(str, program.range_constraints.items()))
    lines: list[Any] = [program.call_spec, program.graph_signature, sizes]
    for name, module in program.graph_module.named_modules():
        if isinstance(module, GraphModule):
            lines.append(name)
            lines += [
                (node.op, node.name, str(node.target), node.args, node.kwargs, _shape(node.meta.get("val")))
                for node in module.graph.nodes
            ]
    lines.append([_shape(value) for value in torch.utils._pytree.tree_leaves(program.example_inputs)])
    return lines


def _shape(value: Any) -> str:
    """What is known of a tensor without its content; several of several."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        return f"{value.dtype}{tuple(value.shape)}{tuple(strides)}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shape, value))
    return repr(value)
