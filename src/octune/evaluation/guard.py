"""User code is not trusted: call it with a limit, and take only a number for a score.

value = call_limited(lambda: evaluate(model), seconds=60)
score = as_score(value)
"""

from __future__ import annotations

import math
import numbers
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from octune.errors import EvaluationError, EvaluationTimeout, OctuneError
from octune.score import Score

__all__ = ["as_score", "call_limited", "expired"]

T = TypeVar("T")
REPEAT = 1.0


def call_limited(function: Callable[[], T], seconds: float = 0) -> T:
    """Call ``function``; raise EvaluationTimeout after ``seconds`` (0: no limit), EvaluationError if it
    raises.

    In the main thread an alarm interrupts it, wherever its Python code is, and again every second as long as
    it swallows that. Elsewhere alarms do not exist: it runs in a thread of its own, which is left behind when
    it hangs.
    """
    try:
        if seconds <= 0:
            return function()
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM"):
            with _alarm(seconds):
                return function()
        return _in_thread(function, seconds)
    except OctuneError:
        raise
    except (Exception, SystemExit) as error:
        raise EvaluationError(f"The evaluation raised {type(error).__name__}: {error}") from error


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    rang = False

    def ring(signum: int, frame: object) -> None:
        nonlocal rang
        rang = True
        raise expired(seconds)

    begun = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    # Rings again each second: code such as "try: ... except Exception: continue" would swallow a single alarm
    # and hang forever.
    waiting, interval = signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if waiting:  # another alarm (a test runner's, say) was set: it gets what is left of its time
            signal.setitimer(signal.ITIMER_REAL, max(waiting - (time.monotonic() - begun), 1e-3), interval)
    if rang:
        raise expired(seconds)


def _in_thread(function: Callable[[], T], seconds: float) -> T:
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True, name="octune-evaluation")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise expired(seconds)
    if failure:
        raise failure[0]
    return outcome[0]


def expired(seconds: float) -> EvaluationTimeout:
    """What is raised after this many seconds."""
    return EvaluationTimeout(
        f"The evaluation ran past the limit of {seconds:g} s for one trial (tuning.trial_timeout)."
    )


def as_score(value: Any) -> Score:
    """A number, a numpy scalar or a 0-d tensor becomes a score; so does one number per item. Anything else is
    refused.
    """
    wanted = "It must return one number, or one number per item."
    if isinstance(value, Score):
        score = value
    elif value is None:
        raise EvaluationError(f"The evaluation returned None. {wanted} Is a 'return' missing?")
    elif isinstance(value, str | bytes | bool | np.bool_):
        raise EvaluationError(f"The evaluation returned {value!r:.60}, a {type(value).__name__}. {wanted}")
    elif isinstance(value, Mapping):
        raise EvaluationError(
            f"The evaluation returned a dict with the keys {list(value)[:6]}. {wanted} Return the one that "
            "counts."
        )
    elif isinstance(value, tuple):
        # (accuracy, loss) would pass for two items, and their mean for a score.
        raise EvaluationError(
            f"The evaluation returned a tuple of {len(value)}. {wanted} Return the one that counts, or a "
            "list of items."
        )
    elif isinstance(value, numbers.Real):
        score = Score.of(float(value))
    else:
        score = _from_array(value, wanted)
    if not math.isfinite(score.value):
        raise EvaluationError(
            f"The evaluation returned {score.value}, which cannot be compared with anything. {wanted}"
        )
    if score.items is not None and not np.isfinite(score.items).all():
        bad = int(np.sum(~np.isfinite(score.items)))
        raise EvaluationError(
            f"The evaluation returned {bad} of {score.items.size} items that are NaN or infinite. {wanted}"
        )
    return score


def _from_array(value: Any, wanted: str) -> Score:
    try:
        # a torch tensor, perhaps with an autograd graph behind it, or a bfloat16 that numpy does not know
        if hasattr(value, "detach"):
            value = value.detach().cpu().double()
        array = np.asarray(value)
        if array.dtype.kind not in "biufO":  # text that looks like numbers, complex numbers, dates
            raise TypeError(f"an array of {array.dtype}")
        array = array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise EvaluationError(f"The evaluation returned a {type(value).__name__}. {wanted}") from error
    if array.size == 1:
        return Score.of(float(array.reshape(())))
    if array.ndim == 1 and array.size:
        binary = bool(np.isin(array, (0.0, 1.0)).all())
        # Items between 0 and 1 are taken to be limited to that. A candidate whose items leave that range is
        # run in full.
        unit = bool(array.min() >= 0 and array.max() <= 1)
        return Score.from_items(array, hits=array if binary else None, limits=(0.0, 1.0) if unit else None)
    raise EvaluationError(f"The evaluation returned an array of shape {array.shape}. {wanted}")
