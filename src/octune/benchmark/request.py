"""What is to be timed, and how: arguments first, and a configuration for what they leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from octune.config import Config
from octune.errors import ConfigError, DataError
from octune.pinning import placed

__all__ = ["Pace", "Request", "Size"]


@dataclass(frozen=True)
class Size:
    """How large the inputs are."""

    batch: int
    sequence: int | None

    def __str__(self) -> str:
        return f"batch {self.batch}" + (f", sequence {self.sequence}" if self.sequence else "")


@dataclass(frozen=True)
class Pace:
    """How long it is timed; ``iterations`` fixes the number of calls."""

    seconds: float
    warmup: int
    iterations: int | None

    def __post_init__(self) -> None:
        if self.seconds < 0 or self.warmup < 0 or (self.iterations is not None and self.iterations < 1):
            raise ConfigError(
                "seconds and warmup must be at least 0, and iterations at least 1. Got "
                f"{self.seconds:g}, {self.warmup} and {self.iterations}."
            )


@dataclass(frozen=True)
class Request:
    """A checked request: ``models`` are sources by name, ``places`` the cores of each instance, ``data`` a
    configuration that names some, as plain data.
    """

    models: Mapping[str, str]
    sizes: Sequence[Size]
    places: Sequence[Sequence[int]]
    pace: Pace
    data: Mapping[str, Any] | None

    @classmethod
    def of(
        cls,
        models: Sequence[str | Path],
        config: Config,
        batch: int | Sequence[int] | None,
        sequence: int | Sequence[int] | None,
        instances: int | None,
        cores: int | None,
        seconds: float,
        warmup: int | None,
        iterations: int | None,
        data: str | Path | None,
    ) -> Request:
        """What the arguments of :func:`octune.bench` amount to; raises ConfigError or DataError."""
        asked = config.performance
        batches = _whole("batch", batch if batch is not None else asked.batch_size or 1)
        sizes = [Size(*size) for size in product(batches, _whole("sequence", sequence) or (None,))]
        pace = Pace(
            seconds,
            warmup if warmup is not None else asked.warmup,
            iterations if iterations is not None else asked.iterations,
        )
        named = _named([*([config.model.path] if config.model and config.model.path else []), *_list(models)])
        places = placed(
            instances if instances is not None else asked.num_of_instance or 1,
            cores if cores is not None else asked.cores_per_instance or asked.threads,
        )
        return cls(named, sizes, places, pace, _data(data, config, sequence))


def _list(models: Sequence[str | Path]) -> list[str | Path]:
    if isinstance(models, str | Path):
        raise ConfigError(f"models must be a list. Got {models!r} instead.")
    return list(models)


def _named(models: Sequence[str | Path]) -> dict[str, str]:
    """Sources by names that differ, also if one model is given twice."""
    if not models:
        raise ConfigError("There is no model to time: name one, or give a configuration with model.path.")
    named: dict[str, str] = {}
    for source in map(str, models):
        same = sum(other == source for other in named.values())
        named[source if not same else f"{source} ({same + 1})"] = source
    return named


def _whole(what: str, given: int | Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        return ()
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ConfigError(f"{what} must be one or more whole numbers >= 1. Got {given!r} instead.")
    return tuple(sorted(set(sizes)))  # memory is that of the largest size so far


def _data(
    data: str | Path | None, config: Config, sequence: int | Sequence[int] | None
) -> dict[str, Any] | None:
    """A configuration that names data; None if inputs are to be made, of the length that was asked for."""
    if data is not None:
        if sequence is not None:
            raise ConfigError("data has sequences of its own length, so sequence cannot be given as well.")
        if not Path(data).is_file():
            raise DataError(f"There is no file {data}. Expected an .npz file with an array for every input.")
        return Config.build(evaluation={"data": {"arrays": str(Path(data).resolve())}}).to_json()
    known = config.evaluation.data is not None or config.calibration.data is not None
    return config.to_json() if known and sequence is None else None
