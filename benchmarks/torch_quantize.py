"""Quantizing an activation: plain arithmetic against PyTorch's deprecated kernel, and against its reference
op.

    python benchmarks/torch_quantize.py              # shapes of linear layers and convolutions
    python benchmarks/torch_quantize.py --threads 1

Eager int8 layers quantize their input at every call; compiled models do it in the code of the op before. The
rows of an int8 linear layer say what the difference amounts to where it matters. All take turns. The exit
code is 1 if the arithmetic and the kernel differ in a bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from bench_machine import footer, quiet
from rich.console import Console
from rich.table import Table

from octune.cost import Load, interleaved

KERNEL, ARITHMETIC, REFERENCE = "torch.quantize_per_tensor", "octune", "quantized_decomposed"
ACTIVATIONS = (
    (1, 384),
    (128, 384),
    (384, 384),
    (128, 768),
    (128, 3072),
    (1024, 768),
    (1, 64, 56, 56),
    (8, 256, 56, 56),
)
LAYERS = ((1, 384, 384), (128, 384, 384), (128, 768, 3072))  # rows, inputs, outputs
SCALE, ZERO_POINT = 0.0313, 117
BURST = 10

Quantize = Callable[[Any, float, int], Any]


def main() -> int:
    options = _options()
    quiet()
    import torch

    from octune.backends.torch.quantize import decomposed, to_uint8

    def kernel(x: torch.Tensor, scale: float, zero_point: int) -> torch.Tensor:
        q = torch.quantize_per_tensor(x, scale, zero_point, torch.quint8)
        # without a copy
        return torch.empty(0, dtype=torch.uint8).set_(q.untyped_storage(), 0, q.shape, q.stride())

    def reference(x: torch.Tensor, scale: float, zero_point: int) -> Any:
        return decomposed.quantize_per_tensor.default(x, scale, zero_point, 0, 255, torch.uint8)

    torch.set_num_threads(options.threads)
    contenders: dict[str, Quantize] = {KERNEL: kernel, ARITHMETIC: to_uint8, REFERENCE: reference}
    made = Table(
        title="time of the kernel, and how many times that the others take",
        title_justify="left",
        header_style="bold",
    )
    for heading in ("", *contenders):
        made.add_column(heading, justify="right" if heading else "left")
    same = True
    with Load() as others, torch.inference_mode():
        for shape in ACTIVATIONS:
            x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2
            if x.ndim == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            same = same and torch.equal(kernel(x, SCALE, ZERO_POINT), to_uint8(x, SCALE, ZERO_POINT))
            calls = {name: partial(quantize, x, SCALE, ZERO_POINT) for name, quantize in contenders.items()}
            made.add_row("quantize " + " x ".join(map(str, shape)), *_ratios(calls, options.seconds))
        for rows, inputs, outputs in LAYERS:
            calls = {name: _linear(rows, inputs, outputs, quantize) for name, quantize in contenders.items()}
            made.add_row(f"int8 linear {inputs} -> {outputs}, {rows} rows", *_ratios(calls, options.seconds))
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(made)
    footer(console, options.threads, others)
    if not same:
        console.print("the arithmetic and the kernel differ", style="bold red")
    return 0 if same else 1


def _ratios(calls: dict[str, Callable[[], object]], seconds: float) -> list[str]:
    times = {
        name: latency.median_ms
        for name, latency in interleaved(calls, seconds=seconds, calls_per_turn=BURST).items()
    }
    return [
        f"{times[KERNEL] * 1e3:.1f} us",
        *(f"{times[name] / times[KERNEL]:.2f}" for name in calls if name != KERNEL),
    ]


def _linear(rows: int, inputs: int, outputs: int, quantize: Quantize) -> Callable[[], object]:
    """What an int8 linear layer does at every call, with this way to quantize."""
    import torch

    onednn: Any = torch.ops.onednn
    random = torch.Generator().manual_seed(0)
    x = torch.randn(rows, inputs, generator=random) * 2
    packed = onednn.qlinear_prepack(
        torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, generator=random), None
    )
    scales, zeros, bias = (
        torch.full((outputs,), 1e-3),
        torch.zeros(outputs, dtype=torch.int32),
        torch.zeros(outputs),
    )
    weights, output = (packed, scales, zeros, bias), (1.0, 0, torch.float32, "none", [], "")

    def call() -> object:
        q = quantize(x, SCALE, ZERO_POINT)
        return onednn.qlinear_pointwise.default(q, SCALE, ZERO_POINT, *weights, *output)

    return call


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="What quantizing an activation costs, with plain arithmetic and with PyTorch's kernel."
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each row is timed (3)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
