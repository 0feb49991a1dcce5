"""A run on the terminal: the trials so far, the best of them, the current stage, and the time that is left.

with closing(LiveProgress(console, timeout)) as listener:
    tune(..., listener=listener)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from octune.engine.events import Listener
from octune.result import Trial
from octune.score import Score

__all__ = ["LiveProgress", "Pace", "best_so_far", "trial_table"]


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


class Pace:
    """How fast a stage gets on, and what is left of it; nothing is guessed before some of it was seen."""

    LEAST = 0.02  # of a stage: less of it says nothing

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def __call__(self, share: float) -> None:
        """This much is done now."""
        self._last = (share, self._now())
        if self._first is None or share < self._first[0]:  # another walk over the data began
            self._first = self._last

    @property
    def share(self) -> float | None:
        return None if self._first is None else self._last[0]

    @property
    def left(self) -> float | None:
        """Seconds, if it goes on like this; None while that is not known."""
        if self._first is None:
            return None
        (begin, begun), (share, at) = self._first, self._last
        if share - begin < self.LEAST:
            return None
        return max(0.0, (1.0 - share) * (at - begun) / (share - begin) - (self._now() - at))


def best_so_far(trials: Sequence[Trial]) -> tuple[int, Trial] | None:
    """The fastest quantized trial that passes, and its number."""
    passing = [
        (number, trial) for number, trial in enumerate(trials) if trial.passed and trial.form != "fp32"
    ]
    return max(passing, key=lambda item: item[1].speedup or 0.0, default=None)


def places(done: Mapping[str, int], most: int = 6) -> str:
    """Where the parts of a stage were done, in a few words."""
    named = [f"{node} {parts}" for node, parts in sorted(done.items())[:most]]
    return ", ".join([*named, *([f"{len(done) - most} more nodes"] if len(done) > most else [])])


class LiveProgress(Listener):
    """A live table on a terminal, with the best trial so far; plain lines elsewhere."""

    def __init__(self, console: Console, timeout: float = 0) -> None:
        self._console = console
        self._trials: list[Trial] = []
        self._spinner = Spinner("dots", text="starting")
        self._begun = time.monotonic()
        self._timeout = timeout
        self._pace = Pace()
        self._spread: dict[str, int] = {}
        self._live: Live | None = None
        self._lines = not console.is_terminal  # a live table cannot be drawn there
        if not self._lines:
            self._live = Live(self, console=console, refresh_per_second=8, transient=True)
            self._live.start()

    def __rich__(self) -> RenderableType:
        self._spinner.update(text=f"{self._stage}  [{self._clock()}]")
        if not self._trials:
            return self._spinner
        return Group(trial_table(self._trials), Text(self._best(), style="bold"), self._spinner)

    _stage = "starting"

    def _best(self) -> str:
        found = best_so_far(self._trials)
        if found is None:
            return "" if len(self._trials) < 2 else "nothing has met the criterion yet"
        number, trial = found
        score = "" if trial.score is None else f", score {trial.score.value:.4f}"
        speed = "" if trial.speed is None else f", {trial.speed}"
        return f"best so far: trial {number} ({trial.form}){score}{speed}"

    def _clock(self) -> str:
        """The time that was spent, and what is known of the time that is left."""
        spent = time.monotonic() - self._begun
        known = [f"{spent:.0f} s"]
        if self._spread:
            known.append(places(self._spread))
        if self._pace.share is not None:
            known.append(f"scored {self._pace.share:.0%}")
        if (left := self._pace.left) is not None:
            known.append(f"about {left:.0f} s left for this model")
        elif len(self._trials) == 1:
            known.append(f"fp32 took {self._trials[0].seconds:.0f} s")
        elif self._trials:
            done = self._trials[1:]
            known.append(f"about {sum(trial.seconds for trial in done) / len(done):.0f} s a trial")
        if self._timeout > 0:
            known.append(f"at most {max(0.0, self._timeout - spent):.0f} s left in all")
        return ", ".join(known)

    def _say(self, line: str) -> None:
        self._console.print(
            f"{time.monotonic() - self._begun:6.0f} s  {line}", highlight=False, soft_wrap=True
        )

    def stage(self, name: str, detail: str) -> None:
        self._stage, self._pace, self._spread = f"{name}: {detail}", Pace(), {}
        if self._lines:
            self._say(self._stage)

    def progress(self, share: float) -> None:
        self._pace(share)

    def spread(self, done: Mapping[str, int]) -> None:
        self._spread = dict(done)

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
