"""Sections of the report, one by one, on made-up ops and numbers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from octune.calibration import Ranges
from octune.calibration.observer import Observer
from octune.criterion import Relative
from octune.plan import Scheme
from octune.report.html import formats
from octune.report.html.svg.draw import shortened, tag
from octune.report.html.svg.heat import harm_picture, time_picture
from octune.report.html.svg.histogram import histogram_picture
from octune.report.html.svg.kinds import kinds_picture
from octune.report.html.svg.scale import Linear, Log
from octune.report.html.views.heat import heat_view, place
from octune.report.html.views.histograms import histograms_view
from octune.report.html.views.kinds import kinds_view
from octune.report.html.views.ops import OpRow, clipped
from octune.report.html.views.verdict import certainty
from octune.score import Score

MINMAX = Scheme.int8()


def op(name: str, harm: float = 1e-4, scheme: Scheme | None = MINMAX, kind: str = "linear") -> OpRow:
    return OpRow(name, kind, 100, scheme, harm, None, 2.0, 0.5, -1.0, 1.0, 0.0, "", name)


def bert(layers: int = 4) -> list[OpRow]:
    roles = ("attention.self.query", "attention.self.key", "output.dense")
    named = [op(f"bert.encoder.layer.{n}.{role}", 10.0 ** -(n + 1)) for n in range(layers) for role in roles]
    return [op("bert.embeddings.word", kind="embedding"), *named, op("classifier")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert.encoder.layer.2.output.dense", ("bert.encoder.layer", 2, "output.dense")),
        ("/bert/encoder/layer.11/attention/key/MatMul", ("bert/encoder/layer", 11, "attention/key/MatMul")),
        ("bert/encoder/layer_3/output/dense/MatMul", ("bert/encoder/layer", 3, "output/dense/MatMul")),
        ("4", ("", 4, "")),
        ("layer1.0.conv1", ("layer1", 0, "conv1")),
        ("classifier", None),
    ],
)  # fmt: skip
def test_names_tell_layers_and_roles(name: str, expected: object) -> None:
    assert place(name) == expected


def test_a_map_has_every_op_of_the_layers() -> None:
    view = heat_view(bert())
    assert view is not None
    assert (view.layers, view.outside) == (("0", "1", "2", "3"), 2)
    assert view.roles == ("attention.self.query", "attention.self.key", "output.dense")
    assert len(view.cells) == 12
    assert heat_view([op("0"), op("2"), op("4")]) is None, "numbers alone are no roles"
    assert heat_view([op("a"), op("b")]) is None


def test_layers_of_several_stages_keep_their_names() -> None:
    ops = [op(f"layer{s}.{b}.conv{c}") for s in (1, 2) for b in (0, 1) for c in (1, 2)]
    view = heat_view(ops)
    assert view is not None
    assert view.layers == ("layer1.0", "layer1.1", "layer2.0", "layer2.1")


def test_milliseconds_by_kind_count_float_ops_as_they_are() -> None:
    view = kinds_view([op("a"), op("b", scheme=Scheme.fp32()), op("c", kind="conv")])
    assert view is not None
    assert [(row.kind, row.ops, row.fp32_ms, row.chosen_ms) for row in view.rows] == [
        ("linear", 2, 4.0, 2.5),
        ("conv", 1, 2.0, 0.5),
    ]
    assert kinds_view([op("a", scheme=None)]) is None


def test_the_ten_worst_have_histograms() -> None:
    observer = Observer()
    observer.update(np.linspace(-1, 3, 4000, dtype=np.float32).reshape(-1, 4))
    stats = observer.stats()
    assert stats is not None
    ops = [op(f"op{n}", harm=n) for n in range(15)]
    found = histograms_view(ops, Ranges({row.name: stats for row in ops}))
    assert [one.op.name for one in found] == [f"op{n}" for n in range(14, 4, -1)]
    assert sum(found[0].counts) == pytest.approx(4000)
    assert found[0].chosen == (-1.0, 1.0)
    assert clipped(stats, -1.0, 1.0) == pytest.approx(0.5, abs=0.01)
    assert clipped(stats, stats.low, stats.high) == 0.0
    ElementTree.fromstring(histogram_picture(found[0]))


@pytest.mark.parametrize("width", [920, 358])
def test_pictures_are_sound_and_stay_inside(width: float) -> None:
    ops = bert(24)
    heat, kinds = heat_view(ops), kinds_view(ops)
    assert heat is not None
    assert kinds is not None
    for drawn in (harm_picture(heat, width), time_picture(heat, width), kinds_picture(kinds, width)):
        assert drawn is not None
        root = ElementTree.fromstring(drawn)
        for box in root.iter("rect"):
            assert (
                0
                <= float(box.get("x", 0))
                <= float(box.get("x", 0)) + float(box.get("width", 0))
                <= width + 0.1
            )
        tips = [box for box in root.iter("rect") if box.get("data-tip")]
        assert len(tips) >= 2


@pytest.mark.parametrize(("low", "high"), [(0.88, 0.893), (0, 1), (-0.004, 0.01), (3, 3), (0, 12345)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    scale = Linear.around([low, high], 0, 100)
    ticks = scale.ticks(5)
    assert 2 <= len(ticks) <= 7
    assert all(scale.low <= tick <= scale.high for tick in ticks)
    assert all(len(formats.plain(tick)) <= 8 for tick in ticks)


def test_a_logarithmic_scale_takes_zero() -> None:
    scale = Log.around([0.0, 1e-5, 3e-2], 0, 100)
    assert (scale.low, scale.high) == (1e-5, 0.1)
    assert scale(0.0) == 0.0
    assert scale.ticks(4)[0] == pytest.approx(1e-5)


def test_what_a_name_says_cannot_break_out() -> None:
    assert tag("rect", data_tip='<&"') == '<rect data-tip="&lt;&amp;&quot;"/>'
    assert shortened("bert.encoder.layer.2.output.dense", 100).endswith("t.dense")


def test_certainty_in_words() -> None:
    rng = np.random.default_rng(0)
    base = (rng.random(400) < 0.9).astype(float)
    other = base.copy()
    other[:3] = 1 - other[:3]
    verdict = Relative(0.01).judge(
        Score.from_items(base, hits=base, limits=(0, 1)), Score.from_items(other, hits=other, limits=(0, 1))
    )
    said = " ".join(certainty(verdict))
    assert verdict.needed is not None
    assert f"about {verdict.needed:,} would decide" in said
    assert re.search(rf"{verdict.lost} answers? got worse and {verdict.gained} got better, of 400", said)


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "–"), (0, "0"), (1.44e-3, "1.4e−3"), (2.5e10, "2.5e+10"), (0.3, "3.0e−1")],
)
def test_harm_has_two_digits(value: float | None, said: str) -> None:
    assert formats.harm(value) == said
