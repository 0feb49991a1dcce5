"""load_task: names, arguments and tokenizers."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octune.errors import ConfigError, MissingDependency
from octune.tasks import load_task, task_names

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def sst2(write: Write, tmp_path: Path) -> Path:
    for name in ("train", "dev"):
        write(f"glue/SST-2/{name}.tsv", "sentence\tlabel\na b\t1\n")
    return tmp_path / "glue"


@pytest.mark.parametrize("name", ["SST-2", "sst2", "sst-2", "SST_2", "sst"])
def test_spellings(sst2: Path, tokenizer: Any, name: str) -> None:
    assert load_task(name, sst2, tokenizer=tokenizer).description.startswith(
        "GLUE SST-2: accuracy on 1 rows of dev.tsv"
    )


def test_a_folder_may_hold_the_tokenizer(sst2: Path, tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    for folder in (tmp_path / "tokenizer", str(tmp_path / "tokenizer")):
        inputs, _ = next(iter(load_task("sst2", sst2, tokenizer=folder).evaluation))
        assert inputs["input_ids"].tolist() == [[2, 4, 5, 3]]


def test_unknown_names(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"Unknown task 'mrpcc'. Did you mean 'mrpc'\?"):
        load_task("mrpcc", tmp_path, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match=r"Unknown task 'xyzzy'. Expected one of: cola, detection, mnli"):
        load_task("xyzzy", tmp_path, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="Unknown"):
        load_task("sst5", tmp_path, tokenizer=tokenizer)
    assert {"sst2", "squad", "squad_v2"} <= set(task_names())


@pytest.mark.parametrize(
    "argument", ["max_length", "calibration_batch_size", "evaluation_batch_size", "calibration_samples"]
)
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_counts_must_be_counts(sst2: Path, tokenizer: Any, argument: str, value: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=f"'{argument}' argument of load_task must be a whole number from 1. Got {value} instead",
    ):
        load_task("sst2", sst2, tokenizer=tokenizer, **{argument: value})


def test_what_is_no_tokenizer(sst2: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_task("sst2", sst2, tokenizer=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no usable tokenizer"):
        load_task("sst2", sst2, tokenizer=sst2)
    with pytest.raises(ConfigError, match="Got int instead"):
        load_task("sst2", sst2, tokenizer=3)


def test_without_transformers_the_message_is_the_command(sst2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingDependency, match=r"pip install 'octune\[torch\]'"):
        load_task("sst2", sst2, tokenizer=sst2)
