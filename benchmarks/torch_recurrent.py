"""LSTMs and GRUs: how much faster int8 is than fp32, by width, batch and direction.

    python benchmarks/torch_recurrent.py              # two layers, 64 time steps
    python benchmarks/torch_recurrent.py --threads 1

Both are modules in eager mode, timed in turns: ``nn.LSTM`` as it is, and what Octune puts in its place. The
first row is a tagger's: two layers of 512, one sentence at a time. ``steps`` is what is put
there where PyTorch has no kernels for whole layers: an int8 product of plain matrices and a dozen operators
for each step. The exit code is 1 if the tagger's LSTM gains less than half.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from bench_machine import footer, quiet
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

    from octune.backends.torch import steps
    from octune.backends.torch.kinds import GRU, LSTM
    from octune.int8 import limit_for
    from octune.plan import Scheme

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    made = Table(
        title=f"{LAYERS} layers, {STEPS} time steps: ms, and fp32 / int8", title_justify="left",
        header_style="bold",
    )  # fmt: skip
    for heading in ("", "width", "batch", "directions", "fp32", "int8", "steps", "int8 gains", "error"):
        made.add_column(heading, justify="right" if heading else "left")
    gains: list[float] = []
    with Load(with_children=True) as others, torch.inference_mode():
        for module_class, kind in ((nn.LSTM, LSTM), (nn.GRU, GRU)):
            for width, batch, both in ROWS:
                float_: Any = module_class(width, width, LAYERS, batch_first=True, bidirectional=both).eval()
                int8: Any = kind(float_.requires_grad_(False)).layer(
                    Scheme.int8("dynamic"), None, limit=limit_for(portable=True)
                )
                x = torch.randn(batch, STEPS, width)
                calls = {"fp32": lambda m=float_, x=x: m(x), "int8": lambda m=int8, x=x: m(x)}
                zeros = torch.zeros(LAYERS * (1 + both), batch, width)
                state, weights = [zeros] * (2 if kind is LSTM else 1), list(int8._weights())
                calls["steps"] = partial(steps.run, x, state, weights, None, int8.cell, both, True)
                times = interleaved(calls, warmup=3, iterations=options.rounds)
                ms = {name: latency.median_ms for name, latency in times.items()}
                wanted = float_(x)[0]
                gains.append(ms["fp32"] / ms["int8"])
                made.add_row(
                    kind.name, str(width), str(batch), str(1 + both), f"{ms['fp32']:.2f}",
                    f"{ms['int8']:.2f}", f"{ms['steps']:.2f}", f"{gains[-1]:.2f}x",
                    f"{float((int8(x)[0] - wanted).norm() / wanted.norm()):.4f}",
                )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(made)
    footer(console, options.threads, others)
    return 0 if gains[0] >= WORTH else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How much faster recurrent layers are in int8.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15, help="turns that each takes (15)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
