"""A trial is cheaper than scoring fp32 once: plans are applied in seconds and scored on real int8 kernels.

    python benchmarks/torch_trial_cost.py            # BERT-base, 64 samples of 128 tokens
    python benchmarks/torch_trial_cost.py --quick    # two layers, 16 samples

A trial is what a tuning run does for each plan: make the int8 model from the plan and the known ranges, then
score it. The exit code is 1 if that takes longer than scoring the fp32 model.
"""

from __future__ import annotations

import argparse
import sys
import time

from bench_machine import footer, quiet
from rich.console import Console
from rich.table import Table

from octune.cost import Load, interleaved

BATCH, TOKENS = 8, 128
ROUNDS = 5


def main() -> int:
    options = _options()
    quiet()
    import torch
    from bench_models import bert, tensors
    from bench_octune import calibrated
    from bench_subject import tokens

    from octune.backends.terms import Settings
    from octune.backends.torch import TorchBackend
    from octune.data import as_batches
    from octune.evaluation import get_metric
    from octune.evaluation.evaluator import MetricEvaluator

    samples = options.samples or (16 if options.quick else 64)
    backend = TorchBackend(
        bert(num_hidden_layers=2 if options.quick else 12), Settings(threads=options.threads)
    )
    labels = torch.randint(0, 2, (BATCH,), generator=torch.Generator().manual_seed(0))
    batches = [(tensors(tokens((BATCH, TOKENS), seed)), labels) for seed in range(-(-samples // BATCH))]
    begun = time.perf_counter()
    _, ranges, plan = calibrated(backend, batches[:4])
    calibration = time.perf_counter() - begun
    evaluator = MetricEvaluator(backend, as_batches(batches, role="evaluation"), get_metric("accuracy"))
    baseline = backend.fp32_model()
    with Load(with_children=True) as others:
        times = interleaved(
            {
                "scoring fp32": lambda: evaluator(baseline),
                "a trial: apply + score int8": lambda: evaluator(backend.apply(plan, ranges)),
                "of which apply": lambda: backend.apply(plan, ranges),
            },
            warmup=1,
            iterations=2 if options.quick else ROUNDS,
        )
    reference = times["scoring fp32"].median_ms
    console = Console(width=None if sys.stdout.isatty() else 140)
    title = f"{len(plan.names('int8'))} int8 ops, {len(batches) * BATCH} samples of {TOKENS} tokens"
    made = Table(title=title, title_justify="left", header_style="bold")
    for heading in ("", "seconds", "of scoring fp32"):
        made.add_column(heading, justify="right" if heading else "left")
    for name, latency in times.items():
        made.add_row(name, f"{latency.median_ms / 1e3:.2f}", f"{latency.median_ms / reference:.2f}")
    made.add_row(
        f"once, before all trials: calibration on {ranges.samples} samples",
        f"{calibration:.2f}",
        f"{calibration * 1e3 / reference:.2f}",
    )
    console.print(made)
    footer(console, options.threads, others)
    return 0 if times["a trial: apply + score int8"].median_ms < reference else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a trial costs, against scoring the fp32 model once.")
    parser.add_argument("--quick", action="store_true", help="two layers, 16 samples")
    parser.add_argument("--samples", type=int, help="samples to score on (64)")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
