"""What a run is about: what must be equal for its journal to be continued, or for another process to speak
for it.

    identity(backend, evaluator, certify, criterion, config, {"calibration data": batches, ...})

The model is known by a digest of all its weights, data in memory by one of all batches, other data by one of
a few: it must be cheap. Limits of the search, where things are kept and what is logged are not part of it:
they may change from one process to the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from octune.config import Config, Performance
from octune.criterion import Criterion
from octune.data import Batches
from octune.evaluation.base import Evaluator

if TYPE_CHECKING:
    from octune.backends import Backend

__all__ = ["data_digest", "identity"]

SCORING = {"metric_options", "postprocess", "samples", "outputs"}
MOST_BYTES = 1 << 20  # of each array
MOST_ITEMS = 1000  # of each list


def identity(
    backend: Backend,
    evaluator: Evaluator,
    certify: str | None,
    criterion: Criterion,
    config: Config,
    data: Mapping[str, Batches | None],
) -> dict[str, Any]:
    """Plain data, equal for equal runs."""
    scoring = config.evaluation.model_dump(mode="json", include=SCORING)
    performance = config.performance
    return {
        "model": backend.fingerprint(),
        "evaluation": {"by": evaluator.name, "certify": certify, **scoring},
        "criterion": criterion.to_json(),
        "objective": config.tuning.objective,
        "strategy": config.tuning.strategy,
        "seed": config.tuning.random_seed,
        "quantization": config.quantization.model_dump(mode="json"),
        "calibration": {
            "samples": list(config.calibration.samples),
            "batches": None if config.calibration.batches is None else list(config.calibration.batches),
        },
        "performance": {
            "threads": performance.threads or performance.cores_per_instance,
            "batch_size": performance.batch_size,
            **performance.extra,
            **({"inputs": _sizes(performance)} if performance.inputs else {}),
        },
        "weights": backend.limit.value,
        **{role: "none" if batches is None else data_digest(batches) for role, batches in data.items()},
    }


def _sizes(performance: Performance) -> list[Any]:
    asked = performance.inputs or ()
    return [performance.objective, *(size.model_dump(mode="json") for size in asked)]


def data_digest(batches: Batches) -> str | None:
    """A digest of the content: of all batches, where they are in memory; of the first, the middle and the
    last one, and of how many there are, where they can be picked by number; else of the first three. None
    where the data comes in another order each time: nothing of it can be compared.
    """
    found = _parts(batches)
    again = found if batches.at_hand else _parts(batches)
    return hashlib.sha256(repr(found).encode()).hexdigest()[:32] if found == again else None


def _parts(batches: Batches) -> tuple[int | None, list[str]]:
    """How many batches there are, if that is known, and digests of a few."""
    count, pick = batches.count, batches.pick
    if count is not None and pick is not None and count > 0:
        numbers = range(count) if batches.at_hand else sorted({0, count // 2, count - 1})
        return count, [_digest(pick(number)) for number in numbers]
    return None, sorted(_digest(batch) for batch in islice(batches, 3))  # no matter in which order they come


def _digest(value: Any) -> str:
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Feed a batch, of whatever it is made, to a digest."""
    value = value.detach().cpu() if hasattr(value, "detach") else value
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"{key}=".encode())
            _add(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"[{len(value)}".encode())
        for item in value[:MOST_ITEMS]:
            _add(digest, item)
    elif isinstance(value, str | bytes | bool | int | float | None):
        digest.update(repr(value).encode())
    elif (array := _array(value)) is not None:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        if array.dtype == object:
            _add(digest, array.reshape(-1)[:MOST_ITEMS].tolist())
        else:
            plain = np.ascontiguousarray(array).reshape(-1)
            most = max(1, MOST_BYTES // max(1, array.itemsize))
            digest.update(plain[:: -(-plain.size // most) or 1].tobytes())
    else:
        digest.update(type(value).__qualname__.encode())  # its content has no known form


def _array(value: Any) -> Any:
    try:
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except (TypeError, ValueError, RuntimeError):  # a type that NumPy does not have, ragged rows
        return None
    return None if array.dtype == object and array.ndim == 0 else array
