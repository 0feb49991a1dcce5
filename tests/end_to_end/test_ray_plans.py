"""Several plans at a time on a real Ray cluster, other frameworks and forms, and nodes that go away: the same
answers as in this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")

import octune  # noqa: E402
from octune.cost.latency import Speedup  # noqa: E402
from octune.engine.journal import Journal  # noqa: E402
from octune.engine.ray import Crew, Wanted  # noqa: E402
from octune.engine.ray.kind import describe  # noqa: E402
from octune.engine.ray.rounds import Shard  # noqa: E402
from octune.engine.ray.together import Together, Wait  # noqa: E402
from octune.errors import EvaluationTimeout  # noqa: E402
from octune.score import Score  # noqa: E402
from tests.digits import Digits, config  # noqa: E402
from tests.end_to_end.test_early_stop import fragile  # noqa: E402
from tests.end_to_end.test_ray import answers, on  # noqa: E402
from tests.foreign import tensorflow_digits  # noqa: E402
from tests.ray_cluster import HOME, nodes  # noqa: E402

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made() -> Iterator[Any]:
    """Two nodes of two CPUs."""
    with nodes({"num_cpus": 2}, {"num_cpus": 2}) as found:
        yield found


@pytest.fixture(scope="module")
def address(made: Any) -> str:
    return str(made.address)


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    assert not ray.is_initialized()


def tune(
    data: Digits, engine: Any, workspace: Path, strategy: str, *, trials: int = 8, **options: Any
) -> octune.Result:
    """The fragile network, whose first plans are hopeless."""
    timeout, criterion = options.pop("timeout", 0), options.pop("criterion", "1%")
    settings: dict[str, Any] = {
        **config(strategy=strategy, max_trials=trials, timeout=timeout),
        "criterion": criterion,
        "quantization": {"approach": "static", "activation": {"algorithm": "minmax"}},
        "engine": engine,
        "workspace": {"path": workspace},
    }
    if "evaluate" not in options:
        options = {"evaluation": data.labelled(4), "metric": "accuracy", **options}
    return octune.tune(fragile(data), calibration=data.batches(), config=settings, progress=False, **options)


def same(first: octune.Result, second: octune.Result) -> bool:
    """Whether winner, plans, verdicts and the score of every item are the same."""

    def told(result: octune.Result) -> list[Any]:
        scores = [(trial.form, trial.plan, trial.verdict, items(trial)) for trial in result.trials]
        return [result.plan, items(result.baseline), scores]

    def items(trial: octune.Trial) -> Any:
        score = trial.score
        return None if score is None or score.items is None else score.items.tolist()

    return told(first) == told(second)


# -- several plans at a time ---------------------------------------------------------------------------------


class Noted:
    """Scores items, and notes who scored how many of which model, and when."""

    def __init__(self, data: Digits, file: Path, seconds: float) -> None:
        self.test, self.labels, self.file, self.seconds = data.test, data.labels, file, seconds

    def __call__(self, model: Any, subset: Any = None) -> list[float]:
        numbers = list(range(len(self.test))) if subset is None else list(subset)
        begun = time.time()
        time.sleep(self.seconds * len(numbers) if subset is not None else 0)
        with torch.no_grad():
            found: list[float] = (model(self.test).argmax(1) == self.labels).float()[numbers].tolist()
        layers = "-".join(type(layer).__name__ for layer in model)
        with self.file.open("a") as file:
            file.write(f"{os.getpid()} {layers} {len(numbers)} {begun} {time.time()}\n")
        return found


def test_random_plans_are_scored_at_the_same_time(data: Digits, address: str, tmp_path: Path) -> None:
    never = {"absolute": -1}  # no plan is that good, so all are tried
    here, notes = Noted(data, tmp_path / "here", 0), tmp_path / "notes"
    expected = tune(data, "local", tmp_path / "local", "random", evaluate=here, criterion=never)
    there = Noted(data, notes, 0.002)
    result = tune(data, on(address, cpus=1), tmp_path / "ray", "random", evaluate=there, criterion=never)
    assert same(result, expected)
    assert answers(tmp_path / "ray") == answers(tmp_path / "local")
    assert len(result.trials) > 4
    lines = [line.split() for line in notes.read_text().splitlines()]
    spans = [
        (layers, float(begun), float(end)) for pid, layers, _, begun, end in lines if int(pid) != os.getpid()
    ]
    together = [
        {first[0], second[0]}
        for first in spans
        for second in spans
        if first[0] != second[0] and first[1] < second[1] < first[2]
    ]
    assert together  # two plans were under way at one moment


@pytest.mark.parametrize(("strategy", "timeout"), [("tpe", 600), ("exhaustive", 600)])
def test_a_batch_of_plans_has_the_journal_of_one_plan_after_the_other(
    data: Digits, address: str, tmp_path: Path, strategy: str, timeout: float
) -> None:
    expected = tune(data, "local", tmp_path / "local", strategy, timeout=timeout)
    result = tune(data, on(address, cpus=1, workers=2), tmp_path / "ray", strategy, timeout=timeout)
    assert same(result, expected)
    assert answers(tmp_path / "ray") == answers(tmp_path / "local")
    assert any(trial.score.partial for trial in result.trials)  # hopeless ones are stopped at the same item
    assert sum(trial.passed for trial in result.trials) > 1  # with time to spend, it goes on
    assert result.stopped_because == expected.stopped_because


def test_what_was_begun_ahead_ends_with_the_search(data: Digits, address: str, tmp_path: Path) -> None:
    """The first plan passes: the others, which were being scored beside it, are not scored to their end."""
    notes = tmp_path / "notes"
    evaluate = Noted(data, notes, 0.002)
    settings = {**config(strategy="random", max_trials=8), "engine": on(address)}
    result = octune.tune(
        data.model(), calibration=data.batches(), evaluate=evaluate, config=settings, progress=False
    )
    assert result.met
    assert len(result.trials) == 1
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert 1 < len({layers for pid, layers, *_ in lines if int(pid) != os.getpid()}) <= 4
    time.sleep(0.5)
    assert len(notes.read_text().splitlines()) == len(lines)  # nobody is at it any more


def test_a_plan_that_is_too_slow_beside_others_is_tried_alone(
    data: Digits, address: str, tmp_path: Path
) -> None:
    evaluate = Noted(data, tmp_path / "notes", 0.05)
    settings = {**config(strategy="random", max_trials=2, trial_timeout=2), "engine": on(address)}
    begun = time.monotonic()
    result = octune.tune(
        data.model(), calibration=data.batches(), evaluate=evaluate, config=settings, progress=False
    )
    for trial in result.trials:
        assert "ran past the limit of 2 s" in trial.error
    assert result.trials[0].seconds > 3.9  # twice
    assert time.monotonic() - begun < 120


def test_models_that_are_scored_together_wait_for_their_own_answers(address: str) -> None:
    crew = Crew(Wanted(address, cpus=1, workers=2))
    order = []

    def scoring(name: str, shards: Any) -> Callable[[Wait], Score]:
        def work(wait: Wait) -> Score:
            found = 0
            for _ in crew.rounds.begin(shards, name, alone=False).results(wait):
                order.append(name)
                found += 1
            return Score.of(float(found))

        return work

    idle = Shard("idle", (), 1)
    try:
        crew.start(describe())
        together = Together(crew.rounds)
        together.add("few", scoring("few", [idle] * 20))
        together.add("many", scoring("many", [idle] * 60))
        together.add("wrong", scoring("wrong", [idle, Shard("scores", (None, None, "search", []), 1)]))
        # The last, because those that were begun first have all the workers that they can use.
        together.add("endless", scoring("endless", (idle for _ in count())))
        assert together.result("few").value == 20
        assert together.result("many").value == 60
        assert len({*order[:30]}) > 1
        with pytest.raises(EvaluationTimeout, match=r"ran past the limit of 0\.3 s"):
            together.result("endless", limit=0.3)
        with pytest.raises(AttributeError):
            together.result("wrong")
        together.close()
        assert len(list(crew.run([idle] * 7))) == 7  # all are free again
    finally:
        crew.close()


# -- nodes that go away --------------------------------------------------------------------------------------


def test_a_node_that_goes_away_costs_nothing_but_time(data: Digits, made: Any, tmp_path: Path) -> None:
    """All of a node: its raylet, its object store and its worker, in mid-shard."""
    lost = made.add_node(**HOME, num_cpus=1)
    folder = tmp_path / "at"
    folder.mkdir()

    class Marked:
        """Batches that note on which node they are picked, and take their time there."""

        def __init__(self, batches: list[Any]) -> None:
            self.batches, self.driver = batches, os.getpid()

        def __len__(self) -> int:
            return len(self.batches)

        def __getitem__(self, number: int) -> Any:
            if os.getpid() != self.driver:
                (folder / ray.get_runtime_context().get_node_id()).touch()
                time.sleep(0.02)
            return self.batches[number]

    scoring: dict[str, Any] = {"trials": 4, "evaluation": Marked(data.labelled(4)), "metric": "accuracy"}
    expected = tune(data, "local", tmp_path / "local", "basic", **scoring)
    removed = []

    def remove() -> None:
        until = time.monotonic() + 90
        while time.monotonic() < until and not removed:
            if (folder / lost.node_id).exists():
                time.sleep(0.1)
                made.remove_node(lost, allow_graceful=False)
                removed.append(lost)
            time.sleep(0.01)

    remover = threading.Thread(target=remove)
    remover.start()
    result = tune(data, on(str(made.address)), tmp_path / "ray", "basic", **scoring)
    remover.join()
    assert removed
    assert same(result, expected)
    assert answers(tmp_path / "ray") == answers(tmp_path / "local")


CONFIGURATION = """
model: {path: "mine:model"}
calibration: {data: {factory: "mine:calibration"}}
evaluation: {data: {factory: "mine:evaluation"}, metric: accuracy}
quantization: {approach: static, activation: {algorithm: minmax}}
performance: {compile: never, iterations: 1, warmup: 0}
tuning: {strategy: random, max_trials: 6, objective: modelsize}
criterion: {absolute: -1}
"""
MINE = """
import os, time
from tests.digits import digits
from tests.end_to_end.test_early_stop import fragile

class Naps(list):
    def __getitem__(self, number):
        time.sleep(float(os.environ.get("NAP", 0)) if number else 0)
        return super().__getitem__(number)

def model():
    return fragile(digits())

def evaluation():
    return Naps(digits().labelled(12))

def calibration():
    return digits().batches()
"""


@pytest.mark.slow
def test_a_search_that_was_interrupted_goes_on_on_another_driver(address: str, tmp_path: Path) -> None:
    """Ctrl-C while several plans are scored; another driver, on the same cluster, comes to what a run in one
    process comes to.
    """
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "conf.yaml").write_text(CONFIGURATION)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{tmp_path}",
        "OCTUNE_COST_CACHE": "off",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "octune"]
    ran = subprocess.run(
        [*command, "tune", "conf.yaml", "--workspace", "local", "--quiet"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode in (0, 1), ran.stderr
    cluster = ["--engine", "ray", "--address", address]
    process = subprocess.Popen(
        [*command, "tune", "conf.yaml", "--workspace", "run", *cluster],
        cwd=tmp_path,
        env=environment | {"NAP": "0.05"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    journal, until = tmp_path / "run" / "journal.jsonl", time.monotonic() + 120
    while time.monotonic() < until and not (journal.exists() and '"event": "trial"' in journal.read_text()):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130, output
    before = len(Journal.read(tmp_path / "run").records("trial"))
    assert 0 < before < 6
    resumed = subprocess.run(
        [*command, "resume", "run", *cluster, "--quiet"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert resumed.returncode == ran.returncode, resumed.stderr
    found = {name: Journal.read(tmp_path / name).records("trial") for name in ("local", "run")}
    assert [record["digest"] for record in found["run"]] == [record["digest"] for record in found["local"]]
    assert [record["answer"]["score"] for record in found["run"]] == [
        record["answer"]["score"] for record in found["local"]
    ]


# -- other frameworks, other forms ---------------------------------------------------------------------------


@pytest.mark.slow
def test_tensorflow_on_a_cluster(data: Digits, address: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    found = {}
    for name, engine in (("local", "local"), ("ray", on(address, workers=2))):
        settings = {
            **config(strategy="random", max_trials=3),
            "performance": {"compile": "never", "iterations": 1, "warmup": 0, "threads": 1},
            "engine": engine,
            "criterion": {"absolute": -1},
            "workspace": {"path": tmp_path / name},
        }
        found[name] = octune.tune(
            str(tensorflow_digits() / "model.keras"),
            calibration=[batch.numpy() for batch in data.batches()],
            evaluation=[(inputs.numpy(), labels.numpy()) for inputs, labels in data.labelled(20)],
            metric="accuracy",
            config=settings,
            progress=False,
        )
    assert same(found["ray"], found["local"])
    assert len(found["ray"].trials) == 3
    assert answers(tmp_path / "ray") == answers(tmp_path / "local")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_forms_are_made_and_scored_by_workers(
    data: Digits, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether it is faster depends on who else is at work here; what it scores does not.
    monkeypatch.setattr(Speedup, "beats", lambda self, rival: self is not rival)
    found = {}
    for name, engine in (("local", "local"), ("ray", on(address, workers=1))):
        settings = config(max_trials=1)
        settings["performance"] = {**settings["performance"], "compile": "auto", "compare_fp32": "never"}
        found[name] = octune.tune(
            data.model(),
            calibration=data.batches(),
            evaluation=data.labelled(20),
            metric="accuracy",
            config={**settings, "engine": engine, "workspace": {"path": tmp_path / name}},
            progress=False,
        )
    assert [trial.form for trial in found["local"].trials] == ["eager", "compiled"]
    assert same(found["ray"], found["local"])
