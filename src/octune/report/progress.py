"""A run on the terminal: the current stage, the trials so far, the time spent, and the time that is left.

with closing(LiveProgress(console, timeout)) as listener:
    tune(..., listener=listener)
"""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from octune.engine.events import Listener
from octune.result import Trial
from octune.score import Score

__all__ = ["LiveProgress", "trial_table"]


def trial_table(trials: list[Trial]) -> Table:
    """All trials, one row each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, justify in (
        ("trial", "right"),
        ("plan", "left"),
        ("form", "left"),
        ("score", "right"),
        ("items", "right"),
        ("drop", "right"),
        ("speed-up", "right"),
        ("verdict", "left"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for index, trial in enumerate(trials):
        table.add_row(*_row(index, trial))
    return table


def _row(index: int, trial: Trial) -> list[RenderableType]:
    label = "fp32" if trial.form == "fp32" else str(index)
    if trial.error is not None:
        return [label, trial.reason, trial.form, "-", "-", "-", "-", Text(trial.error, style="red")]
    verdict = trial.verdict
    score = f"{trial.score.value:.4f}" if trial.score else "-"
    items = _items(trial.score)
    speed = f"{trial.speedup:.2f}x" if trial.speedup else "-"
    if verdict is None or trial.form == "fp32":
        return [label, trial.reason, trial.form, score, items, "", speed, ""]
    style = {"pass": "green", "fail": "red"}.get(verdict.outcome, "yellow")
    word = verdict.outcome + (", stopped early" if verdict.stopped else "")
    return [
        label,
        trial.reason,
        trial.form,
        score,
        items,
        f"{verdict.drop:+.4f}",
        speed,
        Text(word, style=style),
    ]


def _items(score: Score | None) -> str:
    """How many items a score is based on; and out of how many, if it was stopped early."""
    if score is None or score.n is None:
        return "-"
    return f"{score.n:,}" + (f" of {score.total:,}" if score.partial else "")


class LiveProgress(Listener):
    """A live table on a terminal; plain lines elsewhere."""

    def __init__(self, console: Console, timeout: float = 0) -> None:
        self._console = console
        self._trials: list[Trial] = []
        self._spinner = Spinner("dots", text="starting")
        self._begun = time.monotonic()
        self._timeout = timeout
        self._live: Live | None = None
        self._lines = not console.is_terminal  # a live table cannot be drawn there
        if not self._lines:
            self._live = Live(self, console=console, refresh_per_second=8, transient=True)
            self._live.start()

    def __rich__(self) -> RenderableType:
        self._spinner.update(text=f"{self._stage}  [{self._clock()}]")
        return Group(trial_table(self._trials), self._spinner) if self._trials else self._spinner

    _stage = "starting"

    def _clock(self) -> str:
        spent = time.monotonic() - self._begun
        text = f"{spent:.0f} s"
        if self._timeout > 0:
            return f"{text}, at most {max(0.0, self._timeout - spent):.0f} s left"
        done = [trial for trial in self._trials if trial.form != "fp32"]
        if done:
            mean = sum(trial.seconds for trial in done) / len(done)
            text += f", about {mean:.0f} s a trial"
        elif self._trials:
            text += f", fp32 took {self._trials[0].seconds:.0f} s"
        return text

    def _say(self, line: str) -> None:
        self._console.print(
            f"{time.monotonic() - self._begun:6.0f} s  {line}", highlight=False, soft_wrap=True
        )

    def stage(self, name: str, detail: str) -> None:
        self._stage = f"{name}: {detail}"
        if self._lines:
            self._say(self._stage)

    def done(self, name: str, seconds: float) -> None: ...

    def trial(self, trial: Trial) -> None:
        self._trials.append(trial)
        if self._lines:
            self._say(
                f"  {trial.form}: score {trial.score}, {trial.verdict}"
                if trial.error is None
                else f"  {trial.form}: {trial.error}"
            )

    def note(self, text: str) -> None: ...

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
