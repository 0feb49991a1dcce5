"""The demo from end to end: fetch, train the head, tune, hand back the result.

result = run_demo(Console())
"""

from __future__ import annotations

from rich.console import Console

from octune.config import Config
from octune.demo.sentiment import demo_data, prepare
from octune.report.progress import LiveProgress
from octune.result import Result
from octune.tune import tune

__all__ = ["run_demo"]


def run_demo(console: Console) -> Result:
    """Tune the demo's sentiment classifier on its own data with default settings."""
    console.print("[bold]Octune demo[/bold]: a six-layer BERT, a sentiment head, real movie reviews")
    prepare()
    calibration, evaluation = demo_data()
    config = Config.build(model={"path": "octune.demo.model:build", "framework": "pytorch"})
    listener = LiveProgress(console)
    try:
        return tune(
            calibration=calibration,
            evaluation=evaluation,
            metric="accuracy",
            config=config,
            listener=listener,
        )
    finally:
        listener.close()
