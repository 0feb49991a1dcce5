"""What Ray says of an error, in one line."""

from __future__ import annotations

import pytest

from octune.engine.ray.said import cause

CREATION = """The actor died because of an error raised in its creation task, \
\x1b[36mray::Worker.__init__()\x1b[39m (pid=7, ip=10.0.0.2, actor_id=0a)
  File "/usr/lib/python3.11/concurrent/futures/_base.py", line 449, in result
    return self.__get_result()
  File "/home/me/octune/src/octune/engine/ray/worker.py", line 118, in __init__
    import numpy
ModuleNotFoundError: No module named 'numpy'
"""
DEATH = """The actor died unexpectedly before finishing this task.
\tclass_name: Worker
\tactor_id: 0a
Worker exit type: SYSTEM_ERROR"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (CREATION, "ModuleNotFoundError: No module named 'numpy'"),
        (DEATH, "The actor died unexpectedly before finishing this task."),
        ("no traceback: at all", "no traceback: at all"),
    ],
)
def test_what_was_raised_is_said(said: str, expected: str) -> None:
    assert cause(RuntimeError(said)) == expected
