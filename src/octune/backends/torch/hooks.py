"""Watching modules at work, for a while.

with hooks(module.register_forward_hook(see) for module in modules):
    model(x)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch.utils.hooks import RemovableHandle

__all__ = ["hooks"]


@contextmanager
def hooks(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove these hooks at the end, whatever happens."""
    with ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        yield
