"""optimum and sentence-transformers load exported folders and answer as ``octune.load`` does.

They need another transformers than Octune's tests, so they are installed into folders of their own, which
OCTUNE_CONSUMERS names:

    pip install --no-deps --target /tmp/ort optimum==2.1.* optimum-onnx "sentence-transformers<6" \
        "transformers<4.58" "tokenizers<0.23" "huggingface_hub<1"
    pip install --no-deps --target /tmp/ov optimum==2.3.* optimum-intel "transformers<4.58" \
        "tokenizers<0.23" "huggingface_hub<1"
    OCTUNE_CONSUMERS=/tmp/ort:/tmp/ov pytest tests/export/test_consumers.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import octune
from octune.export import export
from tests.export.conftest import SENTENCES, Feed

FOLDERS = [Path(name) for name in os.environ.get("OCTUNE_CONSUMERS", "").split(os.pathsep) if name]


def consumed(consumer: str, package: str, folder: Path) -> npt.NDArray[Any]:
    """What a library answers in a process of its own."""
    place = next((place for place in FOLDERS if (place / package).is_dir()), None)
    if place is None:
        pytest.skip(f"needs {package} in a folder that OCTUNE_CONSUMERS names")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("consumers.py")), consumer, str(folder)],
        input=json.dumps(SENTENCES),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(place), "USE_TF": "0", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return np.asarray(json.loads(done.stdout.splitlines()[-1]))


def test_optimum_on_onnx_runtime(saved: Path, answers: npt.NDArray[Any], tmp_path: Path) -> None:
    got = consumed("optimum_onnx", "optimum/onnxruntime", export(saved, "hf", tmp_path / "hub"))
    np.testing.assert_allclose(got, answers, atol=1e-4)


def test_optimum_on_openvino(saved_openvino: Path, sentences: Feed, tmp_path: Path) -> None:
    got = consumed("optimum_openvino", "optimum/intel", export(saved_openvino, "hf", tmp_path / "hub"))
    own = octune.load(saved_openvino).run(["logits"], sentences)[0]
    np.testing.assert_allclose(got, own, atol=1e-4)


def encoder(classifier: Path, folder: Path) -> Path:
    """The classifier's BERT as sentence-transformers keeps it: mean pooling behind it."""
    from transformers import AutoModel

    shutil.copytree(classifier, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    AutoModel.from_pretrained(str(classifier)).save_pretrained(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                for i, (path, kind) in enumerate(modules)
            ]
        )
    )
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 96, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


def test_sentence_transformers(bert: Path, sentences: Feed, tmp_path: Path) -> None:
    result = octune.tune(
        str(encoder(bert / "model", tmp_path / "encoder")),
        calibration=[sentences, sentences],
        config={
            "model": {"target": "onnx"},
            "criterion": "20%",
            "tuning": {"objective": "modelsize"},
            "performance": {"iterations": 1, "compile": "never"},
        },
    )
    folder = result.save(tmp_path / "hub", layout="hf")
    assert (folder / "1_Pooling/config.json").exists()
    got = consumed("sentence_transformers", "optimum/onnxruntime", folder)
    hidden = result.model.run(["last_hidden_state"], sentences)[0]
    mask = sentences["attention_mask"][..., None]
    np.testing.assert_allclose(got, (hidden * mask).sum(1) / mask.sum(1), atol=1e-4)
