"""What tuning returns: never None, and able to tell its own story.

result = octune.tune(...)
print(result)
if result.met:
    result.save("model-int8")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octune.cost.latency import FP32, Speedup, Spread, Timed
from octune.coverage import Coverage, Work
from octune.criterion import Criterion, Outcome, Verdict
from octune.plan import Op, Plan, Scheme
from octune.score import Score

if TYPE_CHECKING:
    from octune.backends.terms import Writer
    from octune.evidence import Evidence
    from octune.report.data import Tables
    from octune.request import Request

__all__ = ["Result", "Saving", "Trial", "fp32_beside"]


@dataclass(frozen=True, slots=True, repr=False)
class Trial:
    """One plan that was tried: what it scored, how fast it ran, or why it failed.

    ``form`` says how it ran: ``fp32`` (the baseline), ``eager``, or the name of a finalist's form such as
    ``compiled``. ``speed`` is against fp32 measured in turns with it; ``spread_ms`` and ``fp32_spread_ms``
    say how far the calls of both lay apart meanwhile. ``samples`` is how many samples its ranges come from.
    """

    plan: Plan
    form: str = "eager"
    reason: str = ""
    score: Score | None = None
    verdict: Verdict | None = None
    latency_ms: float | None = None
    spread_ms: Spread | None = None
    fp32_spread_ms: Spread | None = None
    speed: Speedup | None = None
    size: int | None = None
    seconds: float = 0.0
    error: str | None = None
    samples: int = 0
    # at each of several sizes of inputs: milliseconds of fp32 and of the model
    sizes_ms: tuple[tuple[float, float], ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it was scored and met the criterion."""
        return self.verdict is not None and self.verdict.passed

    @property
    def dtype(self) -> str:
        """What it is made of: int8 if any op is, else bf16 if any is, else fp32."""
        found = {scheme.dtype for scheme in self.plan.values()}
        return next((name for name in ("int8", "bf16") if name in found), "fp32")

    @property
    def title(self) -> str:
        """What it is called: ``int8 (compiled)``, or ``fp32`` for the model as it came."""
        return "fp32" if self.form == "fp32" else f"{self.dtype} ({self.form})"

    @property
    def speedup(self) -> float | None:
        """How many times faster than fp32 it ran, in one number."""
        return None if self.speed is None else self.speed.ratio

    @property
    def complete(self) -> bool:
        """Whether it was scored on all of the data; a trial that passes always was."""
        return self.score is not None and not self.score.partial

    @property
    def key(self) -> str:
        """What it is found by: the form it ran in, what it was calibrated on, and the plan."""
        return f"{self.form}:{self.samples}:{self.plan.digest}"

    def __repr__(self) -> str:
        said = [self.form, self.reason, self.error or (f"score {self.score}" if self.score else "")]
        said += [self.verdict.outcome if self.verdict else "", f"{self.speed}" if self.speed else ""]
        return f"<octune.Trial: {', '.join(filter(None, said))}>"

    def to_json(self) -> dict[str, Any]:
        """Plain data. The verdict is left out: it follows from the scores and the criterion."""
        return {
            "plan": self.plan.to_json(),
            "form": self.form,
            "reason": self.reason,
            "score": None if self.score is None else self.score.to_json(),
            "latency_ms": self.latency_ms,
            "spread_ms": Spread.plain(self.spread_ms),
            "fp32_spread_ms": Spread.plain(self.fp32_spread_ms),
            "speedup": self.speedup,
            "speedup_interval": None if self.speed is None else [self.speed.low, self.speed.high],
            "load": None if self.speed is None else self.speed.load,
            "size": self.size,
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "samples": self.samples,
            "sizes_ms": [list(pair) for pair in self.sizes_ms],
        }

    def summary(self) -> dict[str, Any]:
        """Plain data without the plan's ops and the per-item scores: what a report or a manifest shows of a
        trial.
        """
        data = self.to_json() | {"plan": self.plan.digest}
        if data["score"] is not None:
            data["score"] = {
                key: value for key, value in data["score"].items() if key not in ("items", "hits", "index")
            }
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """The inverse of :meth:`to_json`, except for the verdict (see :meth:`judged`)."""
        rest = dict(data)
        ratio, interval, load = (
            rest.pop("speedup"),
            rest.pop("speedup_interval", None),
            rest.pop("load", None),
        )
        # Older journals have no intervals.
        low, high = interval or (ratio, ratio)
        speed = None if ratio is None else Speedup(ratio, low, high, load or 0.0)
        score = None if data["score"] is None else Score.from_json(data["score"])
        for name in ("spread_ms", "fp32_spread_ms"):
            rest[name] = Spread.read(data.get(name))
        rest["sizes_ms"] = tuple((slow, fast) for slow, fast in data.get("sizes_ms", ()))
        return cls(**{**rest, "plan": Plan.from_json(data["plan"]), "score": score, "speed": speed})

    def timed(self, timed: Timed | None) -> Trial:
        """This trial with how fast it ran."""
        if timed is None:
            return self
        return replace(
            self,
            speed=timed.speed,
            latency_ms=timed.latency_ms,
            spread_ms=timed.spread,
            fp32_spread_ms=timed.fp32_spread,
            sizes_ms=timed.sizes,
        )

    def judged_as_baseline(self, criterion: Criterion) -> Trial:
        """fp32 with its verdict: its drop against itself is 0, however few items there are."""
        if self.score is None:
            return self
        value = self.score.value
        passes: Outcome = "pass" if criterion.limit(value) >= 0 else "fail"
        return replace(self, verdict=Verdict(passes, 0.0, criterion.allowed(value), n=self.score.n))

    def judged(self, criterion: Criterion, baseline: Score) -> Trial:
        """This trial with its verdict against a baseline."""
        return self if self.score is None else replace(self, verdict=criterion.judge(baseline, self.score))


def fp32_beside(baseline: Trial, trials: Sequence[Trial], ops: Sequence[Op]) -> Trial:
    """fp32 as it ran in turns with the last of these: timed at another moment it could not be compared. Its
    plan is of these ops: it was scored before the model was prepared, which may give ops other names.
    """
    if ops:
        baseline = replace(baseline, plan=Plan({op.name: Scheme.fp32() for op in ops}))
    timed = [trial for trial in trials if trial.latency_ms is not None and trial.speed is not None]
    if not timed:
        return baseline
    last, spread = timed[-1], timed[-1].fp32_spread_ms
    if spread is None:  # a journal of an earlier version
        return replace(baseline, latency_ms=(last.latency_ms or 0.0) * (last.speedup or 0.0))
    return replace(baseline, latency_ms=spread.p50, spread_ms=spread)


@dataclass(frozen=True, slots=True)
class Saving:
    """How a result's model is saved: the framework that loads it again, on which CPUs its int8 weights are
    safe, what writes its files, and the Hugging Face folder that its tokenizer comes from.
    """

    framework: str
    safe_on: str
    write: Writer
    huggingface: Path | None = None
    request: Request | None = None  # what was asked for: a server may need the model in another form


@dataclass(frozen=True, repr=False)
class Result:
    """The best model found, and everything that was learned on the way.

    ``met`` says whether the model that is handed over meets the criterion. If nothing quantized did, or
    nothing was faster, ``best`` and ``model`` are the closest or the fp32 baseline, and ``stopped_because``
    says so. ``certified`` is the final word on ``best`` from data that was held out of the search, where that
    was asked for. Latencies are those of a batch of ``batch`` samples on ``threads`` threads; where
    ``performance.inputs`` names several ``sizes``, they are weighted means, and ``Trial.sizes_ms`` has each.
    ``floats`` says how fast float models are (fp32 compiled or on OpenVINO, bf16), as far as they were timed,
    by what they are called. ``work`` is what one batch computes; ``coverage`` how much of it
    is int8.
    """

    met: bool
    model: Any
    plan: Plan
    baseline: Trial
    best: Trial
    trials: tuple[Trial, ...]
    stopped_because: str
    criterion: Criterion
    ops: tuple[Op, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)  # where the seconds went
    environment: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    workspace: Path | None = None
    certified: Verdict | None = None
    batch: int | None = None
    sizes: tuple[str, ...] = ()
    floats: Mapping[str, Timed] = field(default_factory=dict)
    work: Work | None = None
    saving: Saving | None = field(default=None, repr=False, compare=False)
    evidence: Evidence | None = field(default=None, repr=False, compare=False)  # all that was recorded

    @property
    def front(self) -> tuple[Trial, ...]:
        """The trials that no other trial beats in both score and latency, fastest first; of those that were
        scored on all data.
        """
        scored = [t for t in (self.baseline, *self.trials) if t.complete and t.latency_ms is not None]
        sign = 1.0 if self.criterion.higher_is_better else -1.0
        front: list[Trial] = []
        for trial in sorted(
            scored, key=lambda t: (t.latency_ms or 0.0, -sign * (t.score.value if t.score else 0.0))
        ):
            value = sign * (trial.score.value if trial.score else 0.0)
            if not front or value > sign * (front[-1].score.value if front[-1].score else 0.0):
                front.append(trial)
        return tuple(front)

    @property
    def rivals(self) -> int:
        """How many quantized plans were compared on the data that ``best`` was chosen by: the more there are,
        the more luck is in the score of the best one.
        """
        return len({trial.plan for trial in self.trials if trial.complete and trial.dtype != "fp32"})

    @property
    def fp32_in_form(self) -> Timed | None:
        """fp32 in the form of ``best`` (compiled, OpenVINO), where that was timed; the rest of the gain is
        int8's own.
        """
        return None if self.best.dtype == "fp32" else self.floats.get(f"fp32 ({self.best.form})")

    @property
    def fastest_float(self) -> tuple[str, Speedup] | None:
        """The fastest float model that was timed, by what it is called; fp32 as it came where none is clearly
        faster than that. None where no other was timed.
        """
        if not self.floats:
            return None
        faster = {name: timed.speed for name, timed in self.floats.items() if timed.speed.beats(FP32)}
        return max(faster.items(), key=lambda item: item[1].ratio, default=("fp32", FP32))

    @property
    def over_float(self) -> float | None:
        """How many times faster than the fastest float model the one that is handed over is."""
        fastest, speed = self.fastest_float, self.best.speed
        return None if fastest is None or speed is None else speed.ratio / fastest[1].ratio

    @property
    def int8_gain(self) -> float | None:
        """How many times faster int8 is than fp32 in the same form."""
        if self.fp32_in_form is None or self.best.speed is None:
            return None
        return self.best.speed.ratio / self.fp32_in_form.speed.ratio

    @property
    def coverage(self) -> Coverage | None:
        """Which share of the multiply-adds runs in int8, bf16 and fp32, and what is not seen; None where
        nothing was counted.
        """
        return None if self.work is None else Coverage.of(self.plan, self.ops, self.work, self.kept)

    @property
    def threads(self) -> int | None:
        """How many threads everything ran on."""
        return self.environment.get("threads")

    @property
    def speedup(self) -> float | None:
        """How many times faster than fp32 the handed-over model ran, measured in turns."""
        return self.best.speedup

    def save(self, folder: str | Path, *, layout: str | None = None, overwrite: bool = False) -> Path:
        """Write one self-contained folder that :func:`octune.load` reads without the fp32 model; with a
        ``layout``, such as ``triton``, one that a server takes as it is.
        """
        if layout is not None:
            from octune.export import save_as

            return save_as(self, Path(folder), layout, overwrite=overwrite)
        from octune.artifact import save

        return save(self, Path(folder), overwrite=overwrite)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write one HTML file that tells the whole story, with pictures; it needs no network to be read."""
        from octune.report.html import write_report

        return write_report(self, Path(path))

    def to_dict(self, *, saved_to: str | Path | None = None) -> dict[str, Any]:
        """Everything as plain data, except the model: what ``octune tune --json`` prints."""
        from octune.report.data import as_data

        return as_data(self, saved_to)

    def to_json(self, *, saved_to: str | Path | None = None) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(saved_to=saved_to), indent=1)

    def to_pandas(self) -> Tables:
        """Two data frames, ``trials`` (fp32 is the first row) and ``ops``; needs pandas."""
        from octune.report.data import as_tables

        return as_tables(self)

    def __str__(self) -> str:
        from octune.report.text import story

        return story(self)

    def __repr__(self) -> str:
        from octune.report.text import headline

        return f"<octune.Result: {headline(self)}>"

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from octune.report.notebook import as_html
        from octune.report.tables import result_table

        return as_html(result_table(self))
