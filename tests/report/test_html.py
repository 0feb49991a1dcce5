"""The HTML report says what the journal says, at whatever point a run was cut."""

from __future__ import annotations

import html
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import octune
from octune.cli import app
from octune.errors import OctuneError, WorkspaceError
from octune.report.html import formats, render, write_report
from octune.report.html.page import gather
from octune.report.html.views.ops import op_rows
from octune.report.html.watch import Watch
from tests.digits import config, digits
from tests.report.synthetic import workspace


def text(page: str) -> str:
    """What a reader sees of a page, in one line."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_numbers_are_those_of_the_journal(finished: octune.Result) -> None:
    assert finished.workspace is not None
    page = render(gather(finished.workspace))
    records = [json.loads(line) for line in (finished.workspace / "journal.jsonl").read_text().splitlines()]
    seen = text(page)
    baseline = next(r for r in records if r["event"] == "baseline")["answer"]["trial"]
    assert formats.score(baseline["score"]["value"]) in seen
    for record in (r for r in records if r["event"] == "trial"):
        trial = record["answer"]
        assert f'data-v="{trial["score"]["value"]!r}">{formats.score(trial["score"]["value"])}<' in page
        assert f'data-v="{trial["latency_ms"]!r}">{formats.ms(trial["latency_ms"])}<' in page
    plain: dict[str, list[float]] = {}
    for op, scheme, harm in next(r for r in records if r["event"] == "harm")["answer"]:
        if scheme["dtype"] == "int8" and "repairs" not in scheme:
            plain.setdefault(op, []).append(harm)
    assert set(plain) == {"0", "2", "4"}
    for harms in plain.values():
        assert f'data-v="{min(harms)!r}">{formats.harm(min(harms))}<' in page
    for op, scheme, ms in next(r for r in records if r["event"] == "cost")["answer"]:
        if scheme["dtype"] == "fp32":
            assert f'data-v="{ms!r}">{ms:.3f}<' in page, op
    start = records[0]
    assert start["model"] in seen
    assert str(start["seed"]) in seen


def test_the_result_and_its_workspace_give_the_same_report(finished: octune.Result, tmp_path: Path) -> None:
    assert finished.workspace is not None
    from_memory = finished.report(tmp_path / "a" / "memory.html").read_text()
    shown = CliRunner().invoke(
        app, ["report", str(finished.workspace), "--output", str(tmp_path / "disk.html")]
    )
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "disk.html").read_text() == from_memory


def test_it_needs_no_network_and_hides_nothing_from_the_reader(finished: octune.Result) -> None:
    page = render(gather(finished))
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", page)
    seen = text(page)
    assert str(finished.criterion) in seen
    assert finished.baseline.score is not None
    assert str(finished.baseline.score) in seen


def test_without_a_workspace(tmp_path: Path) -> None:
    data = digits()
    result = octune.tune(data.model(), calibration=data.batches(), evaluate=data.accuracy, config=config())
    seen = text(result.report(tmp_path / "report.html").read_text())
    assert "how sure it is cannot be told" in seen


def test_a_run_that_was_cut_anywhere(finished: octune.Result, tmp_path: Path) -> None:
    assert finished.workspace is not None
    lines = (finished.workspace / "journal.jsonl").read_bytes().splitlines(keepends=True)
    events = [json.loads(line)["event"] for line in lines]
    for kept in range(1, len(lines)):
        (tmp_path / "journal.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:7])
        facts = gather(tmp_path)
        # The process that wrote it is this one, which is alive.
        assert facts.state == ("running" if "run" in events[:kept] else "stopped")
        seen = text(render(facts))
        assert ("under way" in seen) == (facts.state == "running")
        assert ("octune resume" in seen) == (facts.state == "stopped")
        assert (facts.result is not None) == ("baseline" in events[:kept])


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    data, scored = digits(), []

    class Gone:
        def __iter__(self) -> Iterator[Any]:
            if scored:  # one batch is tried before fp32 is scored
                raise ValueError("the disk with the data is gone <b>")
            return iter(data.batches())

    def score(model: Any) -> float:
        scored.append(model)
        return data.accuracy(model)

    with pytest.raises(ValueError, match="is gone"):
        octune.tune(
            data.model(),
            calibration=Gone(),
            evaluate=score,
            config={**config(), "workspace": {"path": str(tmp_path)}},
        )
    page = render(gather(tmp_path))
    assert "The run failed." in text(page)
    assert f"octune resume {tmp_path}" in text(page)
    assert "the disk with the data is gone <b>" in text(page)
    assert "gone <b>" not in page, "escaped"
    assert formats.score(data.accuracy(data.model())) in text(page), "what is known is told"


def test_a_run_whose_model_cannot_be_scored_says_so_in_a_folder_that_was_there(tmp_path: Path) -> None:
    data = digits()
    with pytest.raises(OctuneError):
        octune.tune(
            data.model(),
            calibration=data.batches(),
            evaluate=lambda model: 1 / 0,
            config={**config(), "workspace": {"path": str(tmp_path)}},
        )
    seen = text(render(gather(tmp_path)))
    assert "The run failed." in seen
    assert "division by zero" in seen


def test_what_cannot_be_reported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"has no journal\.jsonl"):
        write_report(tmp_path, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
    saved = tmp_path / "model"
    saved.mkdir()
    (saved / "octune.json").write_text("{}")
    with pytest.raises(WorkspaceError, match=f"{saved} is a saved model.*Expected that workspace"):
        write_report(saved, tmp_path / "report.html")


def test_a_file_that_cannot_be_written(finished: octune.Result, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OctuneError, match="could not be written"):
        finished.report(tmp_path / "file" / "report.html")


def test_overlays_for_model_explorer(finished: octune.Result, tmp_path: Path) -> None:
    assert finished.workspace is not None
    file = tmp_path / "overlay.json"
    arguments = [str(finished.workspace), "-o", str(tmp_path / "r.html"), "--model-explorer", str(file)]
    assert CliRunner().invoke(app, ["report", *arguments]).exit_code == 0
    rows = {row.name: row for row in op_rows(gather(finished))}
    harm, ms = (json.loads((tmp_path / name).read_text()) for name in ("overlay.json", "overlay-ms.json"))
    assert harm["results"]["4"] == harm["results"]["p_4_weight"] == {"value": rows["4"].harm}
    for name, row in rows.items():
        assert (name in ms["results"]) == (row.saved_ms is not None)
    assert [item["stop"] for item in harm["gradient"]] == [0, 1]


def test_watching_is_for_this_machine_and_says_what_it_cannot_do(tmp_path: Path) -> None:
    with Watch(tmp_path, 0) as watch:
        with urllib.request.urlopen(watch.url) as answer:
            assert "Waiting for a run to begin" in answer.read().decode()
        assert watch.news()["ended"] is False
        foreign = urllib.request.Request(watch.url, headers={"Host": "example.org"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(foreign)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{watch.url}journal.jsonl")
        port = int(watch.url.rsplit(":", 1)[1].strip("/"))
        with pytest.raises(OctuneError, match=rf"Port {port} is in use. Choose another with --port"):
            Watch(tmp_path, port)
    for arguments in ([str(tmp_path), "--port", "1"], [str(tmp_path / "none"), "--watch"]):
        with pytest.raises(OctuneError):
            CliRunner().invoke(app, ["report", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("begun", [True, False])
def test_ctrl_c_ends_watching_with_the_report_so_far(
    begun: bool, finished: octune.Result, tmp_path: Path
) -> None:
    assert finished.workspace is not None
    if begun:
        lines = (finished.workspace / "journal.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "journal.jsonl").write_bytes(b"".join(lines[:6]) + lines[6][:9])
    command = [sys.executable, "-m", "octune", "report", str(tmp_path), "--watch", "--port", "0"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline().startswith("watching")
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == (0 if begun else 130), err
    assert "Traceback" not in err
    assert (tmp_path / "report.html").exists() == begun
    assert ("no run has begun" in err) != begun


def test_watching_a_run_that_has_ended_writes_its_report(finished: octune.Result, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    arguments = [str(finished.workspace), "--watch", "--port", "0", "--output", str(file)]
    shown = CliRunner().invoke(app, ["report", *arguments])
    assert shown.exit_code == 0
    assert "http://127.0.0.1:" in shown.stdout
    assert file.exists()


@pytest.mark.parametrize("labelled", [True, False])
def test_answers_that_flipped_are_shown(labelled: bool, tmp_path: Path) -> None:
    import torch

    data = digits()
    model = torch.nn.Sequential(torch.nn.Flatten(), *data.model())
    # Weights of one tensor with an outlier: int8 in this op is coarse enough to change answers.
    with torch.no_grad():
        model[5].weight[:, 0] += 8.0 * torch.arange(10.0)
    images, labels = data.test.reshape(-1, 1, 8, 8), model(data.test.reshape(-1, 1, 8, 8)).argmax(1)
    batches = [(images[i : i + 100], labels[i : i + 100]) for i in range(0, 500, 100)]
    result = octune.tune(
        model,
        calibration=[data.train[:64].reshape(-1, 1, 8, 8)],
        evaluation=batches if labelled else [inputs for inputs, _ in batches],
        metric="accuracy" if labelled else None,
        criterion=octune.Relative(0.9),
        config={**config(), "workspace": {"path": str(tmp_path)}},
    )
    verdict = result.best.verdict
    assert verdict is not None
    assert verdict.lost
    journal = (tmp_path / "journal.jsonl").read_text().splitlines()
    flips = next(r["answer"] for r in map(json.loads, journal) if r["event"] == "flips")
    assert len(flips) == min(12, verdict.lost)
    page = render(gather(tmp_path))
    for flip in flips:
        with torch.no_grad():
            assert flip["fp32"].split()[0] == str(int(model(images[flip["item"]][None]).argmax()))
        assert flip["fp32"].split()[0] != flip["int8"].split()[0]
        assert flip["label"] == (str(int(labels[flip["item"]])) if labelled else "")
        assert flip["image"] in page
    assert f"{len(flips)} of {formats.plural(verdict.lost, 'item')} that flipped" in text(page)
    assert ("Without labels" in text(page)) != labelled


def test_the_model_in_a_workspace_stands_for_its_run(finished: octune.Result, tmp_path: Path) -> None:
    assert finished.workspace is not None
    whole = tmp_path / "run"
    shutil.copytree(finished.workspace, whole)
    (whole / "model").mkdir()
    (whole / "model" / "octune.json").write_text("{}")
    assert gather(whole / "model").journal.folder == whole
    shutil.copytree(whole / "model", tmp_path / "elsewhere" / "model")
    with pytest.raises(WorkspaceError):
        gather(tmp_path / "elsewhere" / "model")


def test_headlines_own_up_to_doubt(tmp_path: Path) -> None:
    busy = workspace(tmp_path / "busy", ops=16, trials=30)
    lines = (busy / "journal.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        record.pop("sum", None)  # its checksum, which would not fit any more
        if record["event"] == "trial":
            record["answer"]["load"] = 0.9
    (busy / "journal.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert "too busy to say how fast it is" in text(render(gather(busy)))
    few = workspace(tmp_path / "few", ops=16, trials=30, items=60)
    facts = gather(few)
    assert facts.result is not None
    assert facts.result.best.verdict is not None
    assert facts.result.best.verdict.undecidable
    assert "60 items are too few to be sure" in text(render(facts))
