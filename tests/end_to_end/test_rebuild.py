"""The winner is made again from its workspace, to the bit, on every backend; what has changed is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import octune
from octune.backends.batches import Inputs
from octune.errors import WorkspaceError
from octune.opening import open_model
from tests.scripts import load_script

jobs = load_script("benchmarks/fault_jobs.py")
FRAMEWORKS = ("pytorch", "tensorflow", "onnx")


def tuned(folder: Path, framework: str, **sections: Any) -> octune.Result:
    """A run in ``ws``, from the YAML file of a project in that folder, which is the working directory."""
    jobs.project(folder, framework, **{"criterion": {"absolute": 0.5}, **sections})
    settings = yaml.safe_load((folder / "conf.yaml").read_text())
    return octune.tune(config={**settings, "workspace": {"path": "ws"}}, progress=False)


def answers(folder: Path) -> Any:
    """What a saved model says to some digits."""
    opened = open_model(folder)
    try:
        x = np.load("digits.npz")["x"][:200]
        return next(iter(opened.run(opened.split(x)[0]).values()))
    finally:
        opened.close()


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, from which modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "fault_model", raising=False)
    return tmp_path


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_winner_is_the_same_to_the_bit(framework: str, inside: Path, octune_command: Any) -> None:
    pytest.importorskip({"pytorch": "torch"}.get(framework, framework))
    result = tuned(inside, framework)
    assert result.plan.names("int8")
    result.save(inside / "one")
    before = {path.name: path.read_bytes() for path in (inside / "ws").iterdir()}
    (inside / "digits.npz").rename(inside / "digits-moved.npz")  # no data is needed
    code, output, errors = octune_command("replay", "ws", "--output", "two", "--json")
    assert code == 0, errors
    assert json.loads(output)["saved_to"] == "two"
    assert {path.name: path.read_bytes() for path in (inside / "ws").iterdir()} == before
    (inside / "digits-moved.npz").rename(inside / "digits.npz")
    np.testing.assert_array_equal(answers(inside / "one"), answers(inside / "two"))
    again = octune.replay("ws", rebuild=True)
    assert again.plan == result.plan
    assert again.to_dict()["trials"] == result.to_dict()["trials"]
    np.testing.assert_array_equal(answers(again.save(inside / "three")), answers(inside / "one"))


def test_a_model_that_was_an_object_is_asked_for(inside: Path) -> None:
    torch = pytest.importorskip("torch")
    jobs.project(inside, "pytorch")
    from fault_model import build  # type: ignore[import-not-found]  # written a moment ago

    x = torch.from_numpy(np.load("digits.npz")["x"])
    options = {**jobs.settings(), "workspace": {"path": "ws"}, "criterion": {"absolute": 1.0}}
    del options["calibration"], options["evaluation"]
    result = octune.tune(
        build(), calibration=[x[:32], x[32:64]], evaluate=lambda model: 1.0, config=options, progress=False
    )
    with pytest.raises(
        WorkspaceError, match=r"an object in Python.*--model, or octune\.replay\(..., model=\)"
    ):
        octune.replay("ws", rebuild=True)
    again = octune.replay("ws", model=build())
    assert torch.equal(again.model(x), result.model(x))
    assert torch.equal(octune.replay("ws", model="fault_model:build").model(x), result.model(x))
    other = build()
    with torch.no_grad():
        other[0].weight[0, 0] += 1e-3
    with pytest.raises(WorkspaceError, match="is not the model of the run in ws: its weights differ"):
        octune.replay("ws", model=other)


def test_a_converted_model_is_converted_again(inside: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    result = tuned(inside, "pytorch", model={"path": "fault_model:build", "target": "onnx"})
    again = octune.replay("ws", rebuild=True)
    one, two = (answers(found.save(inside / name)) for found, name in ((result, "one"), (again, "two")))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("lost", ["ranges.npz", "example.npz"])
@pytest.mark.parametrize("how", ["deleted", "changed"])
def test_what_the_workspace_has_lost_is_named(inside: Path, lost: str, how: str) -> None:
    pytest.importorskip("onnx")
    tuned(inside, "onnx")
    path = inside / "ws" / lost
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(WorkspaceError, match=r"The workspace ws has lost .* cannot be rebuilt"):
        octune.replay("ws", rebuild=True)
    assert octune.replay("ws").met  # what was found is told all the same


def test_the_command_says_what_it_lacks(inside: Path, octune_command: Any) -> None:
    pytest.importorskip("onnx")
    tuned(inside, "onnx")
    code, _, errors = octune_command("replay", "ws", "--model", "model.onnx")
    assert (code, "--output is missing" in errors) == (2, True)
    shutil.move("model.onnx", "moved.onnx")
    code, _, errors = octune_command("replay", "ws", "--output", "two")
    assert code == 2
    assert "cannot be opened again" in errors
    code, _, errors = octune_command("replay", "ws", "--output", "two", "--model", "moved.onnx")
    assert code == 0, errors


# -- an example is kept --------------------------------------------------------------------------------------


def test_inputs_of_every_kind_are_kept() -> None:
    from octune.backends.example import from_bytes, to_bytes

    text = np.array(["a", "b\0"], dtype=object)
    mask = np.array([[True, False]])
    inputs = Inputs((np.arange(3), [1.5, None]), {"a": {"b": text}, "c": (b"\0", "x")}, mask)
    content = to_bytes(inputs)
    assert content is not None
    again = from_bytes(content, Path("example.npz"))
    assert again.args[1] == [1.5, None]
    assert again.kwargs["c"] == (b"\0", "x")
    assert again.kwargs["a"]["b"].tolist() == text.tolist()
    np.testing.assert_array_equal(again.args[0], inputs.args[0])
    np.testing.assert_array_equal(again.mask, mask)
    assert to_bytes(Inputs((object(),))) is None


# -- what a resumed run is told ------------------------------------------------------------------------------

CHANGES = {
    "quantization": ({"quantization": {"activation": {"algorithm": "mse"}}}, "activation.algorithm: there"),
    "calibration": ({"calibration": {"samples": 32}}, r"samples: there \[64\], here \[32\]"),
    "evaluation": ({"evaluation": {"samples": 500}}, "samples: there None, here 500"),
    "criterion": ({"criterion": {"absolute": 0.25}}, "absolute: there 0.5, here 0.25"),
    "performance": ({"performance": {"threads": 2}}, "threads: there 1, here 2"),
    "strategy": ({"tuning": {"strategy": "basic"}}, "there 'exhaustive', here 'basic'"),
}


def resumed(folder: Path, **sections: Any) -> octune.Result:
    settings = yaml.safe_load((folder / "conf.yaml").read_text())
    for name, section in sections.items():
        settings[name] = {**settings.get(name, {}), **section}
    workspace = {"path": str(folder / "ws"), "resume": True}
    return octune.tune(config={**settings, "workspace": workspace}, progress=False)


def once(folder: Path) -> int:
    """How many candidates were scored, none of them twice."""
    found = [digest for _, digest in jobs.scored(folder)]
    assert len(found) == len(set(found))
    return len(found)


def test_whatever_has_changed_is_named(inside: Path) -> None:
    pytest.importorskip("onnx")
    tuned(inside, "onnx", tuning={"max_trials": 1})
    for what, (sections, said) in CHANGES.items():
        with pytest.raises(WorkspaceError, match=rf"belongs to another run: its {what} differs \(.*{said}"):
            resumed(inside, **sections)
    data = dict(np.load("digits.npz"))
    for which, name in ((slice(None), "calibration data"), (-1, "evaluation data")):
        changed = data["x"].copy()
        changed[which] += 0.01
        np.savez("digits.npz", x=changed, label=data["label"])
        with pytest.raises(WorkspaceError, match=f"its {name} differs"):
            resumed(inside)
    np.savez("digits.npz", **data)
    assert resumed(inside).met


def test_limits_may_be_raised(inside: Path, octune_command: Any) -> None:
    pytest.importorskip("onnx")
    jobs.project(inside, "onnx", tuning={"max_trials": 2})
    assert octune_command("tune", "conf.yaml", "--workspace", "ws", "--json")[0] == 1
    assert once(inside) == 2
    code, output, errors = octune_command("resume", "ws", "--max-trials", "4", "--json")
    assert code == 1, errors
    told = json.loads(output)
    assert len(told["trials"]) == 4
    assert told["stopped_because"].startswith("max_trials reached (4)")
    assert once(inside) == 4
    code, _, errors = octune_command("resume", "ws", "--max-trials", "0")
    assert (code, "max_trials" in errors) == (2, True)


def test_time_is_counted_over_all_processes(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setenv("SLOW", "0.2")  # each scoring
    jobs.project(inside, "onnx")
    first = resumed(inside, tuning={"timeout": 1.0, "max_trials": 1000})
    assert first.stopped_because.startswith("timeout reached (1 s)")
    count = once(inside)
    again = resumed(inside, tuning={"timeout": 1.0, "max_trials": 1000})
    assert [trial.plan for trial in again.trials] == [trial.plan for trial in first.trials]
    assert again.stopped_because == first.stopped_because
    assert once(inside) == count
    more = resumed(inside, tuning={"timeout": 3.0, "max_trials": 1000})
    assert len(more.trials) > len(first.trials)
    assert [trial.plan for trial in more.trials][: len(first.trials)] == [t.plan for t in first.trials]
    assert once(inside) == len(more.trials)


@pytest.mark.parametrize("kind", [list, tuple, iter, "arrays"])
def test_data_in_memory_is_known_by_all_of_it(kind: Any, tmp_path: Path) -> None:
    """A label that was mended in any place makes it other data, for which no score of before counts."""
    from octune.arrays import ArrayBatches
    from octune.data import as_batches
    from octune.identity import data_digest

    def digest(labels: Any) -> str | None:
        rows = [(np.full((2, 3), number), label) for number, label in enumerate(labels)]
        if kind != "arrays":
            return data_digest(as_batches(kind(rows), role="evaluation"))
        np.savez(tmp_path / "a.npz", x=np.stack([x[0] for x, _ in rows]), label=labels)
        return data_digest(as_batches(ArrayBatches(tmp_path / "a.npz", 2), role="evaluation"))

    labels = np.arange(20)
    found = {digest(np.where(labels == place, 99, labels)) for place in range(20)} | {digest(labels)}
    assert len(found) == 21
    assert digest(labels.copy()) in found


def test_a_shuffling_loader_has_nothing_to_compare() -> None:
    from octune.data import as_batches
    from octune.identity import data_digest

    rows = [np.full((2, 3), number) for number in range(9)]
    order = np.random.default_rng(0)

    class Shuffled:
        def __iter__(self) -> Any:
            return iter([rows[i] for i in order.permutation(9)])

    assert data_digest(as_batches(Shuffled(), role="calibration")) is None
    digests = {data_digest(as_batches(part, role="calibration")) for part in (rows, rows[:8], rows[::-1])}
    assert len(digests) == 3
    assert None not in digests
    assert data_digest(as_batches([row.copy() for row in rows], role="evaluation")) in digests
