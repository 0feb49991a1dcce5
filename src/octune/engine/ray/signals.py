"""Ctrl-C and time limits while Ray waits.

with undisguised():
    ray.wait(...)           # KeyboardInterrupt is KeyboardInterrupt
with uninterrupted():
    ray.kill(...)           # happens, whatever is pressed
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["undisguised", "uninterrupted"]


@contextmanager
def undisguised() -> Iterator[None]:
    """What a signal handler raises inside Ray's compiled code may come out as a SystemError."""
    try:
        yield
    except SystemError as error:
        raise (error.__cause__ or error.__context__ or error) from None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until this is over. Alarms of a time limit go on ringing by themselves."""
    if threading.current_thread() is not threading.main_thread():  # no handler runs in this one
        yield
        return
    caught: list[int] = []
    numbers = [number for name in ("SIGINT", "SIGALRM") if (number := getattr(signal, name, None))]
    before = {number: signal.signal(number, lambda got, frame: caught.append(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if signal.SIGINT in caught:
            signal.raise_signal(signal.SIGINT)
