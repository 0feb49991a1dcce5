"""Tasks that need no code: from files to a score."""

from __future__ import annotations

from octune.tasks.batches import TaskData, TaskOptions, TokenBatches
from octune.tasks.glue import glue_metric, load_glue
from octune.tasks.load import load_task, task_names
from octune.tasks.squad import load_squad

__all__ = [
    "TaskData",
    "TaskOptions",
    "TokenBatches",
    "glue_metric",
    "load_glue",
    "load_squad",
    "load_task",
    "task_names",
]
