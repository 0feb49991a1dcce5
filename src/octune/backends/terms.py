"""What is said between a backend and those who ask it: settings, arrays, and the answers that have parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octune.errors import short
from octune.plan import Op

__all__ = [
    "B",
    "OUTPUT",
    "Finalist",
    "Outputs",
    "Recompiled",
    "SelfTest",
    "Servable",
    "Settings",
    "Tensor",
    "Visit",
    "Writer",
    "notes_on",
]

# An op's name stands for its input. What calibration keeps besides it has the op's name and one of these: its
# output, and the second operand of a product of two activations.
OUTPUT, B = ":output", ":b"

# Hugging Face outputs by their names ("logits", "start_logits", ...), a tuple as "0", "1", ..., a bare tensor
# as "output".
Outputs = Mapping[str, npt.NDArray[Any]]
Writer = Callable[[Any, Path], dict[str, Any]]


class Visit(Protocol):
    """What ``Backend.observe`` calls for every op that ran; ``array`` is None where no range is needed.

    An op's name stands for its input. A backend that needs an output's range as well visits it as ``name +
    OUTPUT``, and the second operand of a product of two activations as ``name + B``.
    """

    def __call__(
        self,
        op: str,
        array: npt.NDArray[np.float32] | None,
        *,
        shape: tuple[int, ...],
        channel_axis: int = -1,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may fix about the model itself."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    threads: int | None = None
    portable: bool = True  # whether int8 weights must be safe on any CPU, or on this one alone
    # where the model came from (folder, or package.module:factory), if a name is known
    source: str | None = None
    forms: tuple[str, ...] | None = None  # of a winner; the backend's usual ones if left out
    # what only some frameworks have, by name: each backend says which it takes, and the others are refused
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finalist:
    """Another form of a plan: a model like the one that apply() gives, made with more patience. ``seconds``:
    what that takes where nothing of it was kept from an earlier run.
    """

    form: str
    model: Any
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SelfTest:
    """How fast number formats are here, over fp32, by name; and what the user should know."""

    speed: Mapping[str, float]
    advice: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a saved model: NumPy's name of its type, and its sizes, None where they are
    free.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Servable:
    """What servers can take of a saved model: the formats it comes in (``onnx``, ``openvino``,
    ``savedmodel``), the first of which was scored, each with a function that writes it into a folder; and its
    inputs and outputs.
    """

    formats: Mapping[str, Callable[[Path], object]]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Recompiled:
    """A compiled form that was made from a saved folder: the metadata that tells of it, its digest for
    :func:`octune.trust.remember`, and what the model answers to an example without it and with it.
    """

    metadata: Mapping[str, Any]
    digest: str
    before: Outputs
    after: Outputs


def notes_on(ops: Iterable[Op], quantizable: str, total: int | None = None) -> list[str]:
    """What the user should know about a model's ops; ``quantizable`` names the kinds that int8 is for. There
    may be more ops (``total``) of which nothing is to be said.
    """
    listed = list(ops)
    by_note: dict[str, list[str]] = {}
    for op in listed:
        if op.note:
            by_note.setdefault(op.note, []).append(op.name)
    notes = [f"{short(names)}: {note}" for note, names in by_note.items()]
    count = len(listed) if total is None else total
    if not count:
        notes.append(f"the model has no op that can be quantized ({quantizable})")
    elif not any(op.can("int8") for op in listed):
        notes.append("no op of the model can be int8 here, so nothing is quantized")
    return notes
