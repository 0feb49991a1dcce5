"""LSTMs and GRUs: how much faster int8 is than fp32, by width, batch and direction.

    python benchmarks/torch_recurrent.py              # two layers, 64 time steps
    python benchmarks/torch_recurrent.py --threads 1

Both are modules in eager mode, timed in turns: ``nn.LSTM`` as it is, and what Octune puts in its place. The
first row is a tagger's: two layers of 512, one sentence at a time. ``split`` is the other way to use int8:
the inputs of all steps as one int8 matmul of oneDNN, then an int8 matmul, five activations and three products
for each step. The exit code is 1 if the tagger's LSTM gains less than half.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bench_machine import BUSY_NEIGHBOURS, describe, quiet
from rich.console import Console
from rich.table import Table

from octune.cost import Load, interleaved

STEPS, LAYERS = 64, 2
# width, batch, both directions
ROWS = (
    (512, 1, False), (512, 8, False), (512, 32, False), (1024, 1, False), (256, 1, False), (256, 1, True),
    (128, 1, False), (128, 8, False), (64, 1, False),
)  # fmt: skip
WORTH = 1.5


def main() -> int:
    options = _options()
    quiet()
    import torch
    from torch import nn

    from octune.backends.torch.kinds import GRU, LSTM
    from octune.int8 import limit_for
    from octune.plan import Scheme

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    made = Table(
        title=f"{LAYERS} layers, {STEPS} time steps: ms, and fp32 / int8", title_justify="left",
        header_style="bold",
    )  # fmt: skip
    for heading in ("", "width", "batch", "directions", "fp32", "int8", "split", "int8 gains", "error"):
        made.add_column(heading, justify="right" if heading else "left")
    gains: list[float] = []
    with Load(with_children=True) as others, torch.inference_mode():
        for module_class, kind in ((nn.LSTM, LSTM), (nn.GRU, GRU)):
            for width, batch, both in ROWS:
                float_: Any = module_class(width, width, LAYERS, batch_first=True, bidirectional=both).eval()
                int8 = kind(float_.requires_grad_(False)).layer(
                    Scheme.int8("dynamic"), None, limit=limit_for(portable=True)
                )
                x = torch.randn(batch, STEPS, width)
                calls = {"fp32": lambda m=float_, x=x: m(x), "int8": lambda m=int8, x=x: m(x)}
                if module_class is nn.LSTM and not both:
                    split = _Split(float_)
                    calls["split"] = lambda m=split, x=x: m(x)
                times = interleaved(calls, warmup=3, iterations=options.rounds)
                ms = {name: latency.median_ms for name, latency in times.items()}
                wanted = float_(x)[0]
                gains.append(ms["fp32"] / ms["int8"])
                made.add_row(
                    kind.name, str(width), str(batch), str(1 + both), f"{ms['fp32']:.2f}",
                    f"{ms['int8']:.2f}", f"{ms['split']:.2f}" if "split" in ms else "", f"{gains[-1]:.2f}x",
                    f"{float((int8(x)[0] - wanted).norm() / wanted.norm()):.4f}",
                )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(made)
    where = describe(options.threads, ("torch",))
    console.print(
        f"{where['cpu']}, {options.threads} threads, torch {where['versions']['torch']}",
        style="dim",
        highlight=False,
    )
    if others.cores > BUSY_NEIGHBOURS:
        console.print(
            f"warning: other processes kept {others.cores:.1f} cores busy meanwhile",
            style="yellow",
            highlight=False,
        )
    return 0 if gains[0] >= WORTH else 1


class _Split:
    """An LSTM of int8 linear layers, step by step."""

    def __init__(self, lstm: Any) -> None:
        from torch import nn

        from octune.backends.torch.kinds import Linear
        from octune.int8 import Limit
        from octune.plan import Scheme

        def int8(weight: Any, bias: Any = None) -> Any:
            layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
            layer.weight.data = weight
            if bias is not None:
                layer.bias.data = bias
            return Linear(layer).layer(Scheme.int8("dynamic"), None, limit=Limit.PAIRS)

        self.layers = []
        for layer in range(lstm.num_layers):
            w_ih, w_hh, b_ih, b_hh = (
                getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            self.layers.append((int8(w_ih, b_ih + b_hh), int8(w_hh)))

    def __call__(self, x: Any) -> Any:
        import torch

        for inputs, recurrent in self.layers:
            steps, outputs = inputs(x).unbind(1), []
            hidden = cell = x.new_zeros(len(x), recurrent.in_features)
            for step in steps:
                i, f, g, o = (step + recurrent(hidden)).chunk(4, -1)
                cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
                hidden = torch.sigmoid(o) * torch.tanh(cell)
                outputs.append(hidden)
            x = torch.stack(outputs, 1)
        return x


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How much faster recurrent layers are in int8.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15, help="turns that each takes (15)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
