"""Shell completion, asked as bash asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from octune.tasks.load import task_names

# The command must be called by its name: the name of the variable that asks follows from it.
OCTUNE = "import sys; sys.argv = ['octune']; from octune.cli import main; main()"


def completed(line: str) -> list[str]:
    asked = {
        "_OCTUNE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", OCTUNE],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("octune re", {"resume", "replay"}),
        ("octune tune --no", {"--no-portable"}),
        ("octune tune --task s", {name for name in task_names() if name.startswith("s")}),
        ("octune check a.onnx b.onnx --metric spe", {"spearmanr"}),
        ("octune export model --layout tr", {"triton"}),
        ("octune tune conf", set()),  # nothing, so that the shell offers its files
    ],
)
def test_commands_options_and_tasks_are_completed(line: str, expected: set[str]) -> None:
    found = set(completed(line))
    assert expected <= found
    assert expected or not found
