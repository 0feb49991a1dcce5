"""Who hears of a run: nobody, the log, a terminal, a notebook, or a listener of the user's own."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
import time
from typing import Any

import pytest

pytest.importorskip("torch")

import octune
from octune.engine.events import Silent
from octune.errors import ConfigError
from octune.plan import Plan
from octune.report import notebook
from octune.report.listening import listening
from octune.result import Trial
from octune.score import Score
from tests.digits import config, digits

SCRIPT = """
import sys
import octune
from tests.digits import config, digits
data = digits()
def tune(**how):
    octune.tune(data.model(), calibration=data.batches(), evaluate=data.accuracy, config=config(), **how)
tune(progress=False)
print("silent until here", file=sys.stderr)
tune()
"""


def tune(**arguments: Any) -> octune.Result:
    data = digits()
    return octune.tune(
        data.model(), calibration=data.batches(), evaluate=data.accuracy, config=config(), **arguments
    )


def on_a_terminal(script: str) -> str:
    """What a script writes to a terminal."""
    here, there = pty.openpty()
    run = subprocess.Popen([sys.executable, "-c", script], stderr=there, env={**os.environ, "TERM": "xterm"})
    os.close(there)
    shown = b""
    while True:
        try:
            shown += os.read(here, 4096)
        except OSError:  # how a terminal on Linux says that the other side has left
            break
    assert run.wait() == 0
    os.close(here)
    return shown.decode()


def test_a_terminal_shows_the_stages_and_nothing_is_shown_if_that_is_wanted() -> None:
    before, _, shown = on_a_terminal(SCRIPT).partition("silent until here")
    assert before == ""
    assert "the model as it came" in shown


def test_a_program_has_stages_and_their_times_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "octune"):
        tune()
    assert "baseline: scoring the fp32 model" in caplog.text
    assert [record.message for record in caplog.records if record.message.startswith("baseline took 0.")]
    caplog.clear()
    with caplog.at_level(logging.INFO, "octune"):
        tune(progress=False)
    assert caplog.text == ""


class Cell:
    """What IPython's ``display`` shows, and the handle that it returns."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def __call__(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        assert raw
        assert display_id
        self.shown.append(data)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        self.shown.append(data)


def test_a_notebook_is_kept_up_to_date_and_ends_with_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "SECONDS", 0.01)
    cell = Cell()
    ear = notebook.NotebookProgress(cell)
    ear.stage("baseline", "scoring <fp32>")
    while "scoring &lt;fp32&gt;" not in cell.shown[-1]["text/html"]:
        time.sleep(0.01)
    ear.trial(Trial(Plan(), form="fp32", reason="the model as it came", score=Score.of(0.9)))
    ear.close()
    ear.close()
    assert "the model as it came" in cell.shown[-1]["text/html"]
    assert "scoring" not in cell.shown[-1]["text/html"]


def test_a_listener_hears_instead_and_is_closed_even_if_the_run_fails() -> None:
    class Ear(Silent):
        closed = False

        def close(self) -> None:
            self.closed = True

    ear = Ear()
    with pytest.raises(octune.OctuneError), listening(ear, progress=True):
        raise octune.OctuneError
    assert ear.closed


def test_what_is_no_listener_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"listener must be an octune\.Listener.* Got builtin_function"):
        tune(listener=len)
