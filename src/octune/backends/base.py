"""The only thing to subclass to bring a framework to Octune.

A backend answers a few questions about one model, and knows nothing of search, scores, journals or reports:

    prepare(inputs)                     get ready, with a first batch in hand; everything below is pure after
                                        it
    ops()                               what could be quantized, and in which schemes?
    observe(inputs, visit)              what do the activations look like?
    apply(plan, ranges)                 the model under a plan, on real kernels, in seconds
    run(model, inputs)                  one batch through any model it made
    harm(candidates, ranges, ...)     how much does each op in each scheme change the output? (a generic probe
                                      is provided)
    alone(op, scheme, ranges)           a call that runs one op in one scheme, for timing it
    finalists(plan, ranges, inputs)     slower to make, faster to run forms of the same plan (compiled), if
                                        there are any
    writer(), load()                    a folder that needs nothing else

A model under a plan is a function of the prepared model, the plan and the ranges, and of nothing else: what
was observed or applied before does not matter. The model that the user brought is never handed out and never
changed: ``fp32_model()`` is a private copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octune.backends.batches import Inputs
from octune.backends.opened import Opened, Source
from octune.backends.terms import Finalist, Outputs, Recompiled, SelfTest, Servable, Settings, Visit, Writer
from octune.calibration import Ranges
from octune.coverage import Work
from octune.errors import UnsupportedError
from octune.int8 import Limit
from octune.plan import Op, Plan, Scheme

__all__ = ["Backend"]


class Backend(ABC):
    """A framework, seen through one model. See the module's docstring; the contract suite is
    tests/backends/contract.py.
    """

    name: ClassVar[str]
    limits_again: ClassVar[bool] = False  # whether load() can make the weights of a saved model smaller
    # what ``settings.forms`` may name; ``native`` are all forms of its own framework
    form_choices: ClassVar[tuple[str, ...]] = ("native",)
    limit: Limit  # what its int8 weights keep to: set by __init__
    # Forms of finalists that fp32 can be made in, too; and the eager form's name, where that is what people
    # deploy.
    fp32_forms: ClassVar[frozenset[str]] = frozenset()
    eager_title: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def accepts(cls, model: object) -> bool:
        """Whether this is a model of this framework. Must not import anything heavy."""

    @abstractmethod
    def __init__(self, model: Any, settings: Settings) -> None:
        """Take a private fp32 copy of the model; raise ModelError if that cannot be done."""

    @abstractmethod
    def fp32_model(self) -> Any:
        """A new copy of the fp32 model, to score and to compare with: the user's own kind of thing, in
        inference mode.
        """

    def prepare(self, inputs: Any) -> None:  # noqa: B027  some need no example
        """Get the model ready for plans, with a first batch in hand: fold what can be folded, try what may be
        wrong here.

        Called once, before anything else is asked; it may change what :meth:`ops` answers. A backend that is
        never prepared, because no batch is known, works on the model as it came.
        """

    @property
    def extras(self) -> frozenset[str]:
        """The names in ``settings.extra`` that mean something for this model."""
        return frozenset()

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know about the model: converted weights, tied weights, shared modules, ..."""
        return ()

    @abstractmethod
    def split(self, batch: Any) -> tuple[Any, Any]:
        """Tell a batch's inputs from its label (None if it has none), whatever its form. Raise DataError if
        hopeless.
        """

    @abstractmethod
    def batch_size(self, inputs: Any) -> int:
        """How many samples these inputs hold."""

    @abstractmethod
    def resized(self, inputs: Any, samples: int) -> Any:
        """The same inputs with that many samples: cut, or repeated from the start."""

    def rows(self, inputs: Any, numbers: Sequence[int]) -> Inputs | None:
        """Some of the samples of a batch; None where it cannot be taken apart."""
        return inputs.rows(np.asarray(numbers, dtype=np.intp)) if isinstance(inputs, Inputs) else None

    def parts(self, inputs: Any) -> Iterator[Any]:
        """The batches that inputs stand for. Most are one batch; a graph that reads its own file makes many
        of one file name.
        """
        yield inputs

    def restored(self, inputs: Inputs) -> Any:
        """Inputs that were kept in a file, whose tensors have become NumPy arrays, as :meth:`split` gives
        them.
        """
        return inputs

    @abstractmethod
    def ops(self) -> tuple[Op, ...]:
        """All ops that could be quantized, in the order of the model."""

    @abstractmethod
    def observe(self, batches: Iterable[Any], visit: Visit) -> None:
        """Run fp32 over input batches and show every op's input to ``visit``, padding left out where it is
        known.
        """

    def work(self, inputs: Any) -> Work | None:
        """What one batch computes in fp32, in multiply-adds: of every op, and of what is not among
        :meth:`ops`. None where it cannot be told.
        """
        return None

    @abstractmethod
    def apply(self, plan: Plan, ranges: Ranges) -> Any:
        """The model under a plan; ops that the plan does not name stay fp32. Never calibrates, never changes
        the fp32 model.
        """

    @abstractmethod
    def run(self, model: Any, inputs: Any) -> Outputs:
        """Run inputs through :meth:`fp32_model` or anything that :meth:`apply` or :meth:`finalists` gave."""

    @abstractmethod
    def alone(self, op: Op, scheme: Scheme, ranges: Ranges) -> Callable[[], object]:
        """A call that runs this op by itself in this scheme, on the largest input that calibration saw: for
        timing it.
        """

    @abstractmethod
    def harm(
        self,
        candidates: Mapping[str, Sequence[Scheme]],
        ranges: Ranges,
        batches: Sequence[Any],
        only: Collection[str] | None = None,
    ) -> dict[tuple[str, Scheme], float]:
        """Label-free: the mean squared change of the model's output that each op in each scheme causes by
        itself.

        Relative to the output's own variance, so that numbers add up over ops and compare over models. With
        ``only`` the work is done for these ops alone, and their numbers are, to the bit, those that they have
        among all candidates: others may be probed elsewhere. Backends without a shortcut return
        :func:`octune.harm.probe` ``(self, ...)``.
        """

    def probed_together(self, names: Iterable[str]) -> list[list[str]]:
        """These ops in groups that must not be torn apart by ``only``, since the harm of one depends on that
        of the others.
        """
        return [[name] for name in names]

    def outputs(self, plan: Plan, ranges: Ranges, batches: Sequence[Any]) -> list[Outputs]:
        """What the model answers under a plan, for a few batches. Backends whose models are slow to start
        have a shorter way.
        """
        model = self.apply(plan, ranges)
        return [self.run(model, inputs) for inputs in batches]

    def finalists(self, plan: Plan, ranges: Ranges, inputs: Any) -> Iterator[Finalist]:
        """Other forms of the same plan, made one by one because each may be slow to make. None by default."""
        yield from ()

    @contextmanager
    def capture(self, model: Any) -> Iterator[list[Any]]:
        """While this is open, the inputs of the first call of ``model`` are put into the list, where that is
        possible.

        It is how latency can be measured when all the data hides inside the user's evaluation function.
        """
        yield []

    def undo_user_changes(self, model: Any) -> Any:
        """The model as it was made, whatever evaluation code has done to its mode or its hooks."""
        return model

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of the weights, so that a journal is not continued for another model."""

    @abstractmethod
    def size(self, model: Any) -> int:
        """Bytes of weights that this model keeps."""

    @abstractmethod
    def writer(self) -> Writer:
        """What writes a model's files into an empty folder, and returns what :meth:`load` needs to know, as
        plain data.

        A result keeps it for as long as it lives, so it must not refer to the backend: only to what writing
        needs.
        """

    @classmethod
    @abstractmethod
    def load(
        cls,
        folder: Path,
        metadata: Mapping[str, Any],
        factory: Callable[[], Any] | None = None,
        *,
        limit_again: bool = False,
        trusted: bool = False,
    ) -> Any:
        """The inverse of :meth:`writer`, in a process that has never seen the fp32 model.

        Unless it is ``trusted``, nothing that the folder holds or names may run as code, whatever it says.

        ``factory`` builds the architecture where only the user's code can; raise ArtifactError if it is
        needed. ``limit_again``: the weights use all 8 bits and this CPU would add their products wrongly;
        make them smaller. Asked of those that can (``limits_again``).
        """

    @classmethod
    def recompile(
        cls, folder: Path, metadata: Mapping[str, Any], model: Any, example: Callable[[], Any]
    ) -> Recompiled:
        """Make the compiled form of a model that :meth:`load` has made from this folder, and put it there.
        ``example`` makes inputs, for folders that have none.
        """
        raise UnsupportedError(f"Models of {cls.name} have no compiled form: {folder} runs as it is.")

    @classmethod
    def servable(cls, folder: Path, metadata: Mapping[str, Any], *, trusted: bool = False) -> Servable:
        """The files of a saved model that servers read, for ``octune export``; ``trusted`` as in load()."""
        return Servable({}, (), ())

    @classmethod
    @abstractmethod
    def open(cls, source: str) -> Any:
        """The model that a configuration file names: a folder, a file or a hub name of this framework."""

    @classmethod
    def opened(cls, model: Any, source: Source) -> Opened:
        """A model of this framework to be run and nothing else, fp32 or quantized by anyone: what
        :meth:`accepts` accepts, what :meth:`open` opens, and what :meth:`load` loads.
        """
        raise UnsupportedError(f"Models of {cls.name} cannot be opened to be run.")

    @classmethod
    def runs(cls, model: object) -> bool:
        """Whether :meth:`opened` takes this object. Must not import anything heavy."""
        return cls.accepts(model)

    @classmethod
    def to_onnx(cls, model: Any, settings: Settings, batch: Any) -> tuple[Any, Settings]:
        """The model converted to ONNX, with a batch of its data to follow through it, and the settings for
        what was made. It must compute the same; raise UnsupportedError otherwise.
        """
        raise UnsupportedError(
            f"model.target is onnx, and models of {cls.name} cannot be converted. Leave model.target out."
        )

    @classmethod
    def converted_name(cls, node: str) -> str:
        """The op of the model, by its name in plans, that a node of the model converted to ONNX computes."""
        return node

    @classmethod
    def to_litert(cls, model: Any, settings: Settings, plan: Plan) -> tuple[bytes, set[str]]:
        """A ``.tflite`` file of an fp32 model whose ops are int8 as far as a plan says so, and which ops are;
        raise UnsupportedError if that cannot be done.
        """
        raise UnsupportedError(f"Models of {cls.name} cannot be converted to LiteRT.")

    @classmethod
    @abstractmethod
    def self_test(cls) -> SelfTest:
        """Time a linear op of 768 x 3072 on 128 rows in every scheme that runs here: what ``octune doctor``
        shows.
        """

    def close(self) -> None:  # noqa: B027  most have nothing to undo
        """The run is over: undo what was set for it alone (threads)."""

    def environment(self) -> dict[str, Any]:
        """Versions and settings that results of this backend depend on."""
        return {"framework": self.name, "weights": self.limit.value}
