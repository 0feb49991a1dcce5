"""The sizes of inputs that a model should be fast at, made from real samples.

sizes = sizes_of(backend, example, config.performance)      # one for each of performance.inputs
other = other_size(backend, example)                        # (label, inputs) of another size, or None
"""

from __future__ import annotations

from typing import Any

from octune.backends.base import Backend
from octune.backends.batches import Inputs
from octune.config.schema import InputSize, Performance
from octune.engine.stopwatch import Size
from octune.errors import ConfigError, DataError, OctuneError, summary

__all__ = ["describe", "other_size", "sizes_of"]


def sizes_of(backend: Backend, example: Any, performance: Performance) -> tuple[Size, ...]:
    """Inputs of the sizes that were asked for, the one that counts most first. ``example`` is a batch of the
    data.
    """
    asked = performance.inputs
    if not asked:
        return ()
    if example is None:
        raise ConfigError(
            "performance.inputs are made from samples of the data, and there is none. Give calibration= or "
            "evaluation=."
        )
    total = sum(size.weight for size in asked)
    model, made = backend.fp32_model(), []
    for number, size in enumerate(asked):
        where = f"performance.inputs[{number}] ({size})"
        try:
            inputs = _resized(backend, example, size.batch, size.sequence)
            backend.run(model, inputs)
        except OctuneError as error:
            raise DataError(f"{where} cannot be made or run: {error}") from error
        except Exception as error:  # whatever a model raises
            why = f"{type(error).__name__}: {summary(error)}"
            raise DataError(f"{where} cannot be run: {why}. Choose sizes that the model takes.") from error
        samples = backend.batch_size(inputs) if performance.objective == "throughput" else 1
        made.append(Size(describe(backend, inputs), inputs, size.weight / total / samples))
    return tuple(sorted(made, key=lambda size: -size.weight))


def other_size(backend: Backend, example: Any) -> tuple[str, Inputs] | None:
    """The example with another number of samples, and half as long where it has sequences."""
    if not isinstance(example, Inputs):
        return None
    batch, length = backend.batch_size(example), example.length
    inputs = backend.resized(example, 1 if batch > 1 else 4)
    if length is not None and length > 1 and not example.is_joined:
        inputs = inputs.lengthened(length // 2)
    same = (backend.batch_size(inputs), inputs.length) == (batch, length)
    return None if same else (describe(backend, inputs), inputs)


def _resized(backend: Backend, example: Any, batch: int | None, sequence: int | None) -> Any:
    inputs = example if batch is None else backend.resized(example, batch)
    if batch is not None and (found := backend.batch_size(inputs)) != batch:
        raise DataError(f"the model takes batches of {found} only.")
    if sequence is None:
        return inputs
    if not isinstance(inputs, Inputs):
        raise DataError("the graph reads its own data, so its sequences cannot be cut or lengthened.")
    return inputs.lengthened(sequence)


def describe(backend: Backend, inputs: Any) -> str:
    """The size of inputs in a few words."""
    length = inputs.length if isinstance(inputs, Inputs) else None
    return str(InputSize(batch=backend.batch_size(inputs), sequence=length))
