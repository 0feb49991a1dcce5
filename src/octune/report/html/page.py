"""The page: all views and pictures in a template."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from octune.artifact import MANIFEST
from octune.engine.journal import JOURNAL
from octune.errors import MissingDependency, OctuneError, WorkspaceError
from octune.evidence import Evidence
from octune.folders import write_whole
from octune.report.html import formats
from octune.report.html.facts import Facts
from octune.report.html.svg import NARROW, WIDE
from octune.report.html.svg.front import front_picture
from octune.report.html.svg.heat import harm_picture, time_picture
from octune.report.html.svg.histogram import histogram_picture
from octune.report.html.svg.kinds import kinds_picture
from octune.report.html.svg.prediction import prediction_picture
from octune.report.html.svg.timeline import timeline_picture
from octune.report.html.views.comparison import comparison_view
from octune.report.html.views.flips import flips_view
from octune.report.html.views.front import front_view, trial_rows
from octune.report.html.views.heat import heat_view
from octune.report.html.views.histograms import histograms_view
from octune.report.html.views.kinds import kinds_view
from octune.report.html.views.ops import op_rows
from octune.report.html.views.prediction import prediction_view
from octune.report.html.views.reproduce import reproduce_view
from octune.report.html.views.timeline import timeline_view
from octune.report.html.views.verdict import verdict_view
from octune.result import Result

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

__all__ = ["content", "gather", "page", "render", "workspace_of", "write_report"]

TEMPLATES = Path(__file__).parent / "templates"
HALF, FEW_LAYERS = 450, 12
View = TypeVar("View")


def workspace_of(folder: Path) -> Path:
    """The folder itself, or the workspace around a saved model, which is where octune tune puts it."""
    if not (folder / MANIFEST).exists() or (folder / JOURNAL).exists():
        return folder
    around = folder.resolve().parent
    if not (around / JOURNAL).exists():
        raise WorkspaceError(
            f"{folder} is a saved model outside the workspace of the run that made it. Expected that "
            "workspace."
        )
    return around


def gather(source: Result | str | Path) -> Facts:
    """The facts of a result, or of the run in a workspace."""
    evidence: Evidence | None
    result: Result | None
    if not isinstance(source, Result):
        evidence, result = Evidence.read(workspace_of(Path(source))), None
    else:
        evidence, result = source.evidence, source
    if evidence is None:
        raise WorkspaceError(
            "This result was not made by a run of this version, so it has nothing to report."
        )
    with evidence.journal.understood():
        return Facts.of(evidence, result)


def write_report(source: Result | str | Path, path: Path) -> Path:
    """Write the report of a result, or of the run in a workspace; the file appears complete or not at all."""
    facts = gather(source)
    with facts.evidence.journal.understood():
        text = render(facts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise OctuneError(
            f"The report could not be written to {path}: {error}. Choose another file."
        ) from error
    return path


def render(facts: Facts) -> str:
    """The whole file."""
    return page(_title(facts), content(facts))


def page(title: str, body: str, *, watch: bool = False) -> str:
    """A page with this content. With ``watch`` it asks the server that it came from for news."""
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            title=title,
            content=body,
            style=(TEMPLATES / "style.css").read_text(),
            script=(TEMPLATES / "script.js").read_text(),
            watch=watch,
        )
    )


def content(facts: Facts) -> str:
    """What changes while a run goes on: everything but style and script."""
    ops = op_rows(facts)
    heat = heat_view(ops)
    # Two maps of few layers have room side by side.
    beside = HALF if heat is not None and len(heat.layers) <= FEW_LAYERS else WIDE
    return (
        _templates()
        .get_template("content.html.j2")
        .render(
            title=_title(facts),
            state=facts.state,
            verdict=verdict_view(facts),
            comparison=comparison_view(facts),
            front=_drawn(front_picture, front_view(facts)),
            trials=trial_rows(facts),
            kinds=_drawn(kinds_picture, kinds_view(ops)),
            ops=sorted(ops, key=lambda row: -row.worst),
            shown=None if facts.shown is None else facts.number(facts.shown),
            heat=heat,
            harm_map=_drawn(harm_picture, heat, beside),
            time_map=_drawn(time_picture, heat, beside),
            histograms=[(one, histogram_picture(one)) for one in histograms_view(ops, facts.evidence.ranges)],
            prediction=_drawn(prediction_picture, prediction_view(facts)),
            flips=flips_view(facts),
            timeline=_drawn(timeline_picture, timeline_view(facts)),
            reproduce=reproduce_view(facts),
            notes=() if facts.result is None else facts.result.notes,
            f=formats,
        )
    )


def _drawn(draw: Callable[[View, float], str | None], view: View | None, wide: float = WIDE) -> str | None:
    """A picture for the desk and one for the phone: the page shows the one that fits."""
    drawn = (None, None) if view is None else (draw(view, wide), draw(view, NARROW))
    return (
        None if None in drawn else f'<div class="wide">{drawn[0]}</div><div class="narrow">{drawn[1]}</div>'
    )


def _title(facts: Facts) -> str:
    model = facts.run.get("config", {}).get("model", {}).get("path", "")
    folder = facts.journal.folder
    return Path(model).name if model else folder.resolve().name if folder is not None else "tuning run"


@cache
def _templates() -> jinja2.Environment:
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependency("jinja2", "report", "Writing an HTML report") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["exact"] = _exact
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(name: str) -> Markup:
    """A long dotted name that may go on in the next line."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[./])", name))


def _exact(value: Any) -> str:
    """A number to sort by; unknown ones come last in either direction."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)
