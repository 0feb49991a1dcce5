"""What the shell completes after an option, once ``octune --install-completion`` has set it up.

    Task = Annotated[str, typer.Option(autocompletion=tasks)]

Commands and options complete by themselves, and so do paths.
"""

from __future__ import annotations

__all__ = ["layouts", "metrics", "tasks"]


def tasks(incomplete: str) -> list[str]:
    """Names of tasks that begin with what was typed."""
    from octune.tasks.load import task_names

    return [name for name in task_names() if name.startswith(incomplete)]


def metrics(incomplete: str) -> list[str]:
    """Names of metrics that begin with what was typed."""
    from octune.evaluation.metrics import metric_names

    return [name for name in metric_names() if name.startswith(incomplete)]


def layouts(incomplete: str) -> list[str]:
    """Names of layouts that begin with what was typed."""
    from octune.export import LAYOUTS

    return [name for name in LAYOUTS if name.startswith(incomplete)]
