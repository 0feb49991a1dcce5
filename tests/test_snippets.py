"""The documents' own code runs: every Python block, every ``octune`` command and every YAML file of README,
docs and examples, as it stands, on small models. What cannot run here is listed with the reason; a block that
is neither fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from octune.cli import app
from octune.config import parse_config
from octune.cost.latency import Timing
from octune.machine import pretending, probe_machine
from tests import zoo
from tests.digits import digits

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)

# Command lines that are not run here, and why.
NOT_RUN_HERE = {
    r"(pip|make) ": "installs packages; tests/test_package.py installs Octune",
    r"(python|bash|\./\S+|ONEDNN_MAX_CPU_ISA=AVX2 python) ": "a script; tests/examples runs them",
    r"(tritonserver|ovms|tensorflow_model_server|tensorboard) ": "a server of others",
    r"(ray start|sbatch) ": "a cluster; tests/end_to_end/test_ray.py starts one",
    r"octune tune .*--engine ray": "needs a cluster; tests/end_to_end/test_ray.py runs it",
    r"octune --install-completion": "changes the shell of the user; tests/end_to_end/test_completion.py",
    r"octune doctor": "times kernels for seconds; tests/report runs it",
    r"octune report .*--watch": "ends when it is stopped; tests/report runs it",
    r"octune bench ": "times models for minutes; tests/benchmark runs it",
    r"octune compile ": "compiles for half a minute; tests/test_trust.py runs it",
    r"octune (sign|verify) ": "needs a saved model; tests/test_signing.py runs them",
    r"octune export ": "each layout needs another model; tests/export runs all of them",
    r"octune (tune|resume) .*(examples/|octune_runs/sst2)": "test_examples.py reads that file",
}
# Python blocks that are not run here, by page and a line of theirs, and why.
PYTHON_NOT_RUN_HERE = {
    ("docs/bench.md", "import octune"): "times models for a minute; tests/benchmark runs it",
    ("docs/migrating.md", "from octune.compat.lpot import"): "tests/compat/test_lpot.py runs it",
    ("docs/serving.md", "export("): "tests/export runs it",
    ("docs/tensorflow.md", 'calibration=[("train.tfrecord", 32)]'): "test_pipeline.py runs it",
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The command lines of a block of them, without comments."""
        joined = self.text.replace("\\\n", " ")
        return [line for line in (one.partition(" #")[0].strip() for one in joined.splitlines()) if line]


def blocks(page: Path) -> list[Block]:
    text, name = page.read_text(), page.relative_to(ROOT).as_posix()
    return [
        Block(name, text[: found.start()].count("\n") + 1, found[2].strip(), found[3])
        for found in FENCE.finditer(text)
    ]


def why_not(command: str) -> str | None:
    return next((why for rule, why in NOT_RUN_HERE.items() if re.match(rule, command)), None)


def python_why_not(block: Block) -> str | None:
    found = ((page, mark) for page, mark in PYTHON_NOT_RUN_HERE if page == block.page and mark in block.text)
    return next((PYTHON_NOT_RUN_HERE[one] for one in found), None)


def runs_here(block: Block) -> bool:
    if block.kind == "python":
        return python_why_not(block) is None
    return block.kind == "" and any(why_not(command) is None for command in block.commands)


WITH_CODE = [page for page in PAGES if any(runs_here(block) for block in blocks(page))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_known(page: Path) -> None:
    for block in blocks(page):
        where = f"{block.page}, line {block.line}"
        assert block.kind in ("python", "yaml", "yaml error", "text", ""), (
            f"{where}: who runs {block.kind!r}?"
        )
        for command in block.commands if block.kind == "" else ():
            assert command.startswith("octune ") or why_not(command), f"{where}: {command!r} is neither"


def test_every_exception_is_needed() -> None:
    """A rule that no block needs any more goes."""
    everything = [block for page in PAGES for block in blocks(page)]
    commands = [command for block in everything if block.kind == "" for command in block.commands]
    for rule in NOT_RUN_HERE:
        assert any(re.match(rule, command) for command in commands), rule
    for page, mark in PYTHON_NOT_RUN_HERE:
        assert any(b.page == page and mark in b.text for b in everything if b.kind == "python"), (page, mark)


# -- the stage: what a reader of the documents has -----------------------------------------------------------


def _named(model: Any) -> Any:
    """The model with an input that is called ``x``."""
    from torch import nn

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x)

    return Named()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, data and files under the names that the documents use."""
    import onnx
    import torch
    from transformers import AutoModelForSequenceClassification

    from tests.backends.onnx.models import exported

    folder = tmp_path_factory.mktemp("stage")
    for task in ("sst-2", "mrpc"):
        data = zoo.glue(folder / "data/glue", task)
        zoo.classifier(folder / f"models/bert-{task.replace('-', '')}", task, data)
    known = digits()
    images, labels = known.test.numpy(), known.labels.numpy()
    np.savez(folder / "dev.npz", x=images, label=labels)
    other = known.model()
    with torch.no_grad():  # an int8 model that answers some questions otherwise
        for weight in other.parameters():
            weight.add_(
                torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * weight.std() / 3
            )
    for name, model in (("model", known.model()), ("model-int8", other)):
        onnx.save(exported(_named(model), {"x": torch.zeros(2, 64)}, ["logits"]), folder / f"{name}.onnx")
    bert = AutoModelForSequenceClassification.from_pretrained(
        folder / "models/bert-sst2", attn_implementation="eager"
    )
    tokens = torch.ones(2, 7, dtype=torch.int64)
    given = {"input_ids": tokens, "attention_mask": tokens, "token_type_ids": 0 * tokens}
    onnx.save(exported(bert, given, ["logits"]), folder / "bert-sst2.onnx")
    readme = next(block for block in blocks(ROOT / "README.md") if block.kind == "yaml")
    (folder / "conf.yaml").write_text(readme.text)
    (folder / "signs.yaml").write_text(yaml.safe_dump({"framework": {"name": "pytorch"}}))
    with contextlib.chdir(folder), quick():
        run("octune tune conf.yaml --workspace octune_runs/bert --output tuned")
    return folder


@cache
def torch_names() -> dict[str, Any]:
    """What snippets call the user's own things."""
    known = digits()
    train, dev = known.batches(), known.labelled()
    return {
        "model": known.model(),
        "fp32_model": known.model(),
        "train_loader": train,
        "dev_loader": dev,
        "score": known.hits,
        "accuracy": known.accuracy,
        "my_function": known.hits,
        "images": known.test,
        "labels": known.labels,
    }


def array_names() -> dict[str, Any]:
    known = digits()
    return {
        "images": known.test.numpy(),
        "labels": known.labels.numpy(),
        "batches": [batch.numpy() for batch in known.batches()],
        "accuracy": lambda logits, labels: float((logits.argmax(1) == labels).mean()),
        "N": 2,
        "threads": 2,
    }


def names_for(page: str) -> dict[str, Any]:
    return array_names() if page in ("docs/onnx.md", "docs/tensorflow.md") else dict(torch_names())


@contextmanager
def quick() -> Iterator[None]:
    """Compiling the winner takes longer than all the rest, and so does timing it well."""
    with pretending(replace(probe_machine(), compiler=None)), pytest.MonkeyPatch.context() as patch:
        patch.setattr("octune.job.Timing", lambda warmup, iterations: Timing(0, 1))
        yield


def prepared(page: str, place: Path) -> None:
    """What some pages take for granted besides."""
    if page == "docs/tensorflow.md":
        from tests.backends.tensorflow import subjects

        (place / "frozen.pb").write_bytes(subjects.graph_def().SerializeToString())
    if page == "docs/serving.md":
        (place / "tuned").rename("model-int8")


def run(command: str) -> None:
    command = command.replace("bert-sst2 model-int8.onnx", "bert-sst2 bert-sst2.onnx")  # not the digits
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    # 1 says that the criterion is not met, or that two models differ
    assert done.exit_code in (0, 1), f"{command}\n{done.output}\n{done.exception!r}"
    assert done.exit_code == 0 or isinstance(done.exception, SystemExit), f"{command}\n{done.exception!r}"


DONE: set[str] = set()  # several pages show the same command


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs_from_top_to_bottom(
    page: Path, stage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = page.relative_to(ROOT).as_posix()
    if "tensorflow" in name:
        pytest.importorskip("tensorflow")
    shutil.copytree(stage, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "snippet", **names_for(name)}
    with quick():
        prepared(name, tmp_path)
        for block in blocks(page):
            if block.kind == "yaml":
                parse_config(block.text)
            elif block.kind == "python" and python_why_not(block) is None:
                exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)
            elif block.kind == "":
                for command in block.commands:
                    if why_not(command) is None and command not in DONE:
                        run(command)
                        DONE.add(command)
    assert os.getcwd() == str(tmp_path)
