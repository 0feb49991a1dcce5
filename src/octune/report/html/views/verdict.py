"""The verdict: what came of the run in one sentence, how sure that is, and the four numbers that matter."""

from __future__ import annotations

from dataclasses import dataclass

from octune.criterion import DEFAULT_LEVEL, Verdict
from octune.evaluation.agreement import Agreement
from octune.report.html import formats
from octune.report.html.facts import Facts
from octune.report.text import float_gain, megabytes, selection_bias
from octune.result import Result

__all__ = ["Tile", "VerdictView", "verdict_view"]


@dataclass(frozen=True, slots=True)
class Tile:
    """One large number."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class VerdictView:
    """``tone`` is good, bad or open; it is never told by colour alone: ``badge`` says it in words."""

    tone: str
    badge: str
    headline: str
    sentences: tuple[str, ...]
    tiles: tuple[Tile, ...]


def verdict_view(facts: Facts) -> VerdictView:
    """The top of the page."""
    tone, badge = {
        "met": ("good", "criterion met"),
        "not met": ("bad", "criterion not met"),
        "running": ("open", "running"),
        "stopped": ("open", "not finished"),
        "failed": ("bad", "failed"),
    }[facts.state]
    result = facts.result
    sentences = [*_end(facts), *([] if result is None else _sentences(facts, result))]
    tiles = () if result is None else _tiles(facts.metric, result)
    return VerdictView(tone, badge, _headline(facts), tuple(sentences), tiles)


def _headline(facts: Facts) -> str:
    result = facts.result
    if facts.state == "failed":
        return "The run failed."
    if facts.state == "stopped":
        return "The run stopped before its end."
    if facts.state == "running":
        stage = facts.journal.last("stage")
        return f"The run is under way{'' if stage is None else ': ' + stage['detail']}."
    assert result is not None  # a run that has ended has one
    if result.best.form == "fp32":
        return f"The fp32 model is handed back: {result.stopped_because}."
    name = "int8 model" if result.best.dtype == "int8" else f"{result.best.dtype} model ({result.best.form})"
    if not result.met:
        return f"The closest int8 model is handed over: {result.stopped_because}."
    verdict, speed = result.best.verdict, result.best.speed
    unsure = verdict is not None and verdict.undecidable
    kept = "keeps to the answers of fp32" if facts.metric == Agreement.name else "keeps its score"
    words = [f"The {name} {'meets the criterion' if unsure else kept}"]
    if speed is not None and not speed.disturbed:
        words.append(f" {'and' if speed.ratio >= 1 else 'but'} runs {formats.times(speed.ratio)} as fast")
    if verdict is not None and unsure:
        words.append(f", though {formats.plural(verdict.n or 0, 'item')} are too few to be sure")
    if speed is not None and speed.disturbed:
        words.append("; the machine was too busy to say how fast it is")
    return f"{''.join(words)}."


def _end(facts: Facts) -> list[str]:
    """Why a run did not come to its end, and how to go on."""
    if facts.state not in ("failed", "stopped"):
        return []
    stage, error = facts.journal.last("stage"), facts.journal.ended_by_error
    said = [] if error is None else [f"{error.rstrip('.')}."]
    said += [] if stage is None else [f"Its last stage: {stage['detail']}."]
    return [*said, f"Go on with: octune resume {facts.journal.folder}."]


def _sentences(facts: Facts, result: Result) -> list[str]:
    metric, baseline, trial = facts.metric, result.baseline, facts.shown
    if baseline.score is None:
        return []
    if trial is None or trial.score is None or trial.verdict is None:
        return [f"So far: {metric} of fp32 {baseline.score}. Asked for: {result.criterion}."]
    verdict = trial.verdict
    name = (
        f"Trial {facts.number(trial)}: "
        if result.best.form == "fp32"
        else ""
        if facts.ended
        else "Best so far: "
    )
    metric = metric if name else metric.capitalize()
    change = "loss" if verdict.drop > 0 else "gain"
    by = "no change" if verdict.drop == 0 else f"a {change} of {formats.score(abs(verdict.drop))}"
    said = [
        f"{name}{metric} {formats.score(trial.score.value)} against {formats.score(baseline.score.value)} in "
        f"fp32, {by}; a loss of {formats.score(verdict.allowed)} is allowed ({result.criterion})."
    ]
    if facts.metric == Agreement.name:
        said.append("There are no labels: this is how far int8 agrees with fp32, not how often it is right.")
    said += certainty(verdict)
    if result.best.form == "fp32" and trial.speed is not None:
        said.append(f"It runs {trial.speed} as fast as fp32.")
    if result.fastest_float is not None and result.best.form != "fp32":
        told = float_gain(result)
        said.append(f"Of float models {told}.")
    if facts.coverage is not None:
        said.append(f"Of the multiply-adds: {facts.coverage}.")
    if result.certified is not None:
        held = result.certified
        said.append(
            f"On data that the search never saw: {held.outcome}, loss {formats.signed(held.drop)} of "
            f"{formats.score(held.allowed)} allowed."
        )
    elif bias := selection_bias(result):
        said.append(f"{bias[0].upper()}{bias[1:]}.")
    return said


def certainty(verdict: Verdict) -> list[str]:
    """How sure a verdict is: its interval, the answers that flipped, and how many items would decide."""
    said = []
    if verdict.low is not None and verdict.high is not None:
        level = formats.percent(verdict.confidence or DEFAULT_LEVEL)
        text = (
            f"With {level} confidence the true loss is between {formats.signed(verdict.low)} and "
            f"{formats.signed(verdict.high)}"
        )
        if verdict.undecidable:
            text += f", so {formats.count(verdict.n or 0)} items cannot tell a pass from a fail"
            text += "" if verdict.needed is None else f"; about {formats.count(verdict.needed)} would decide"
        elif verdict.stopped is None:
            text += (
                ", all of it allowed" if verdict.high <= verdict.allowed else ", all of it more than allowed"
            )
        said.append(f"{text}.")
    elif verdict.stopped is None:
        said.append(
            "There is one number for the whole data, not one per item, so how sure it is cannot be told."
        )
    if verdict.stopped is not None:
        said.append(f"{verdict.stopped[0].upper()}{verdict.stopped[1:]}.")
    if verdict.lost is not None and verdict.gained is not None:
        said.append(
            f"{formats.plural(verdict.lost, 'answer')} got worse and {formats.count(verdict.gained)} got "
            f"better, of {formats.count(verdict.n or 0)}."
        )
    return said


def _tiles(metric: str, result: Result) -> tuple[Tile, ...]:
    best, baseline = result.best, result.baseline
    if best.form == "fp32" or best.score is None or baseline.score is None:
        return ()
    drop = "" if best.verdict is None else f"{formats.signed(-best.verdict.drop)} against fp32"
    tiles = [Tile(metric, formats.score(best.score.value), drop)]
    if best.speed is not None:
        speed = best.speed
        tiles.append(
            Tile(
                "speed",
                formats.times(speed.ratio),
                f"{speed.low:.2f} to {speed.high:.2f}"
                + (", too busy to tell" if speed.disturbed else ", in turns"),
            )
        )
    if best.size is not None and baseline.size:
        tiles.append(
            Tile(
                "weights",
                megabytes(best.size),
                f"{best.size / baseline.size:.0%} of {megabytes(baseline.size)}",
            )
        )
    counts = result.plan.counts()
    tiles.append(Tile("int8 ops", f"{counts.get('int8', 0)} of {len(result.plan)}", _rest(counts)))
    return tuple(tiles)


def _rest(counts: dict[str, int]) -> str:
    rest = [f"{number} {dtype}" for dtype, number in sorted(counts.items()) if dtype != "int8"]
    return ", ".join(rest) or "every op"
