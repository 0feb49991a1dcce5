"""Tasks by name: calibration data, evaluation data and metric in one call.

task = load_task("sst2", "data/glue", tokenizer="models/bert-sst2")
octune.tune(model, calibration=task.calibration, evaluation=task.evaluation, metric=task.metric)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octune.errors import ConfigError, MissingDependency, alike
from octune.tasks.batches import TaskData, TaskOptions
from octune.tasks.detection import load_detection
from octune.tasks.embeddings import load_retrieval, load_sts
from octune.tasks.glue import GLUE, load_glue, plain_name
from octune.tasks.ner import load_ner
from octune.tasks.segmentation import load_segmentation
from octune.tasks.squad import SQUAD, load_squad

__all__ = ["OF_IMAGES", "check_task", "load_task", "task_names"]

# Tasks that are one data layout, and not one data set.
OTHERS = {"ner": load_ner, "sts": load_sts, "retrieval": load_retrieval}
OF_IMAGES = {"segmentation": load_segmentation, "detection": load_detection}


def task_names() -> list[str]:
    """The names of all tasks; other spellings ("SST-2", "squad_v2.0") are understood too."""
    return sorted([*GLUE, "squad", "squad_v2", *OTHERS, *OF_IMAGES])


def load_task(
    name: str,
    folder: Path | str,
    *,
    tokenizer: Any,
    max_length: int | None = None,
    calibration_batch_size: int = 8,
    evaluation_batch_size: int = 32,
    split: str | None = None,
    calibration_samples: int | None = None,
    label2id: Mapping[str, int] | None = None,
    calibrates: bool = True,
    size: tuple[int, int] | None = None,
) -> TaskData:
    """Read a task from its files.

        task = load_task("SST-2", "data/glue", tokenizer=tokenizer, calibration_samples=100)

    ``folder`` holds the task's files, or holds the folder that does. ``tokenizer`` is a Hugging Face
    tokenizer or a folder with one. ``max_length`` is 128 tokens if left out, 384 for SQuAD and 256 for
    retrieval.
    ``split`` names the files to evaluate on, the development ones if left out; calibration takes at most
    ``calibration_samples`` random rows of the training files. ``label2id`` is a model's own numbering of the
    labels, ``model.config.label2id``. With ``calibrates=False`` the training files are not read, and need not
    be there. For tasks of images, ``tokenizer`` is the folder of the model's processor, or None, and ``size``
    the height and width that images are brought to.
    """
    options = TaskOptions(
        max_length,
        calibration_batch_size,
        evaluation_batch_size,
        split,
        calibration_samples,
        label2id,
        calibrates,
        size,
    )
    check_task(name)
    key = plain_name(name)
    if key in OF_IMAGES:
        processor = None if tokenizer is None else Path(str(tokenizer))
        return OF_IMAGES[key](folder, processor=processor, options=options)
    if key in OTHERS:
        return OTHERS[key](folder, tokenizer=_tokenizer(tokenizer), options=options)
    load = load_squad if key in SQUAD else load_glue
    return load(name, folder, tokenizer=_tokenizer(tokenizer), options=options)


def check_task(name: str) -> None:
    """Raise if there is no task of that name, and suggest the nearest one."""
    key = plain_name(name)
    if key in SQUAD or key in GLUE or key in OTHERS or key in OF_IMAGES or key.startswith(("mnli", "sst")):
        return
    near = alike(key, [*GLUE, *SQUAD, *OTHERS, *OF_IMAGES], cutoff=0.5)
    raise ConfigError(
        f"Unknown task {name!r}. {f'Did you mean {near[0]!r}? ' if near else ''}Expected one of: "
        f"{', '.join(task_names())}."
    )


def _tokenizer(tokenizer: Any) -> Any:
    if not isinstance(tokenizer, str | Path):
        if not callable(tokenizer) or not hasattr(tokenizer, "pad_token_id"):
            raise ConfigError(
                "The tokenizer must be a Hugging Face tokenizer or a folder with one. Got "
                f"{type(tokenizer).__name__} instead."
            )
        return tokenizer
    local = Path(tokenizer).is_dir()
    if not local and (str(tokenizer).startswith((".", "/", "~")) or str(tokenizer).count("/") > 1):
        raise ConfigError(
            f"The tokenizer folder {tokenizer} does not exist. Expected one that holds tokenizer.json."
        )
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependency("transformers", "torch", "Reading a tokenizer") from error
    try:
        return AutoTokenizer.from_pretrained(str(tokenizer), local_files_only=local, trust_remote_code=False)
    except (OSError, ValueError) as error:
        where = f"The folder {tokenizer} holds" if local else f"{tokenizer} is not a folder, and the hub has"
        raise ConfigError(f"{where} no usable tokenizer: {error}") from error
