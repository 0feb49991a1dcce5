"""One batch means the same to all three backends: the same inputs and label, or the same refusal."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.backends.base import Backend
from octune.backends.batches import Fitting, Inputs, Slot, find_mask, real_rows
from octune.backends.select import backend_for
from octune.backends.terms import Settings, notes_on
from octune.calibration import collect
from octune.errors import DataError
from octune.plan import Op, Scheme

tf = pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from tests.backends.onnx.models import exported  # noqa: E402  needs torch and onnx

BACKENDS = ("pytorch", "onnx", "tensorflow")
WORDS, WIDTH = 10, 8
LOUD = WORDS - 1  # the word whose row in the table is far larger than all others
random = np.random.default_rng(0)
table = random.uniform(-1, 1, (WORDS, WIDTH)).astype(np.float32)
table[LOUD] = 1000
weight = random.standard_normal((WIDTH, 3)).astype(np.float32)

x = random.standard_normal((3, WIDTH)).astype(np.float32)
ids = np.arange(12).reshape(3, 4) % LOUD
mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
y = np.array([0, 1, 0])


class Product(torch.nn.Module):
    """One input of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 3, bias=False)
        self.layer.weight = torch.nn.Parameter(torch.from_numpy(weight.T.copy()))

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Tokens(Product):
    """Two inputs of whole numbers; tokens are multiplied as one long row of them, as BERT's own code does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(torch.from_numpy(table))

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        found = self.table(input_ids)
        made = self.layer(found.reshape(-1, WIDTH)).reshape(*input_ids.shape, 3)
        return (made * attention_mask[..., None]).sum(1)


def product(x: Any) -> Any:
    return {"logits": tf.matmul(x, weight)}


def tokens(input_ids: Any, attention_mask: Any) -> Any:
    made = tf.matmul(tf.reshape(tf.gather(table, input_ids), [-1, WIDTH]), weight)
    made = tf.reshape(made, tf.concat([tf.shape(input_ids), [3]], 0))
    return {"logits": tf.reduce_sum(made * tf.cast(attention_mask, tf.float32)[..., None], 1)}


def opened(backend: str, model: str) -> Backend:
    """The same model in each framework; PyTorch's anew, because it remembers what a tuple meant."""
    if backend == "pytorch":
        return backend_for((Product() if model == "product" else Tokens()).eval(), Settings())
    return graph(backend, model)


@cache
def graph(backend: str, model: str) -> Backend:
    named = {"x": x} if model == "product" else {"input_ids": ids, "attention_mask": mask}
    if backend == "tensorflow":
        wanted = [
            tf.TensorSpec([None, *([WIDTH] if a is x else [None])], a.dtype, n) for n, a in named.items()
        ]
        made = product if model == "product" else tokens
        return backend_for(tf.function(made, input_signature=wanted).get_concrete_function(), Settings())
    module = (Product() if model == "product" else Tokens()).eval()
    given = {name: torch.from_numpy(array) for name, array in named.items()}
    return backend_for(exported(module, given, ["logits"]), Settings())


def split(backend: str, model: str, batch: Any) -> tuple[dict[str, Any], Any]:
    """Inputs as plain arrays by name, and the label."""
    inputs, label = opened(backend, model).split(batch)
    names = ("x",) if model == "product" else ("input_ids", "attention_mask")
    values = dict(zip(names, inputs.args, strict=False)) | dict(inputs.kwargs)
    return {name.removesuffix(":0"): np.asarray(value) for name, value in values.items()}, label


def refusal(backend: str, model: str, batch: Any) -> str:
    """The message, without the types that only graphs declare and what was tried in vain."""
    with pytest.raises(DataError) as caught:
        opened(backend, model).split(batch)
    said = str(caught.value).partition(" Tried ")[0]
    return re.sub(r" \((float32|int64)\[[^]]*\]\)", "", said)


# -- what is understood --------------------------------------------------------------------------------------

named = {"input_ids": ids, "attention_mask": mask}
UNDERSTOOD: dict[str, tuple[Any, Any]] = {
    "dict": (named, None),
    "dict in another order": ({"attention_mask": mask, "input_ids": ids}, None),
    "labels in the dict": ({**named, "labels": y}, y),
    "label in the dict": ({"label": y, **named}, y),
    "extra keys": ({**named, "idx": y}, None),
    "dict and label": ((named, y), y),
    "dict and label in a list": ([named, y], y),
    "dict and no label": ((named, None), None),
    "labels in a dict beside no label": (({**named, "labels": y}, None), y),
    "labels in a dict beside a label": (({**named, "labels": None}, y), y),
    "tuple": ((ids, mask), None),
    "list": ([ids, mask], None),
    "tuple and label": (((ids, mask), y), y),
    "lists": ([[ids, mask], y], y),
    "tuple and no label": (((ids, mask), None), None),
    "label last": ((ids, mask, y), y),
    "label last in a list": ([ids, mask, y], y),
    "tensors": (({name: torch.from_numpy(array) for name, array in named.items()}, y), y),
    "int32": ({name: array.astype(np.int32) for name, array in named.items()}, None),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", UNDERSTOOD)
def test_two_inputs(form: str, backend: str) -> None:
    batch, label = UNDERSTOOD[form]
    values, found = split(backend, "tokens", batch)
    assert set(values) == {"input_ids", "attention_mask"}
    np.testing.assert_array_equal(values["input_ids"], ids)
    np.testing.assert_array_equal(values["attention_mask"], mask)
    assert found is label


ONE: dict[str, tuple[Any, Any]] = {
    "array": (x, None),
    "float64": (x.astype(np.float64), None),
    "tensor": (torch.from_numpy(x), None),
    "array in a tuple": ((x,), None),
    "array in a list": ([x], None),
    "array and label": ((x, y), y),
    "array and label in a list": ([x, y], y),
    "array and no label": ((x, None), None),
    "the array is its own label": ((x, x), x),
    "tuple and label": (((x,), y), y),
    "list and label": (([x], y), y),
    "dict": ({"x": x}, None),
    "dict and label": (({"x": x}, y), y),
    "label in the dict": ({"x": x, "label": y}, y),
    "nested list": (x.astype(np.float64).tolist(), None),
    "nested list and label": ((x.astype(np.float64).tolist(), y), y),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ONE)
def test_one_input(form: str, backend: str) -> None:
    batch, label = ONE[form]
    values, found = split(backend, "product", batch)
    assert values["x"].dtype == np.float32
    np.testing.assert_allclose(values["x"], x, rtol=1e-6)
    assert found is label


Form = Callable[[dict[str, Any], Any], Any]
FORMS: list[Form] = [
    lambda given, label: given,
    lambda given, label: {**given, "labels": label},
    lambda given, label: (given, label),
    lambda given, label: tuple(given.values()),
    lambda given, label: [list(given.values()), label],
    lambda given, label: (*given.values(), label),
]


@settings(max_examples=60)
@given(
    form=st.sampled_from(FORMS),
    rows=st.integers(1, 6),
    length=st.integers(1, 6),
    label=st.one_of(st.none(), st.integers(0, 9), st.just(y), st.lists(st.integers(0, 9), max_size=4)),
)
def test_batches_of_any_size_are_split_alike(form: Form, rows: int, length: int, label: Any) -> None:
    given = {"input_ids": np.full((rows, length), 3), "attention_mask": np.ones((rows, length), np.int64)}
    answers = [split(backend, "tokens", form(given, label)) for backend in BACKENDS]
    for values, found in answers:
        assert all(np.array_equal(values[name], array) for name, array in given.items())
        assert found is answers[0][1]


# -- what is refused -----------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, Any]] = {
    "empty tuple": ("tokens", ()),
    "empty list": ("product", []),
    "empty dict": ("tokens", {}),
    "label first": ("tokens", (y, ids, mask)),
    "label before a dict": ("tokens", (y, named)),
    "label before the one input": ("product", (y, x)),
    "one of two inputs": ("tokens", ids),
    "one of two inputs in a tuple": ("tokens", (ids,)),
    "one of two inputs in a dict": ("tokens", {"input_ids": ids}),
    "keys of another model": ("tokens", {"ids": ids, "mask": mask}),
    "too many": ("tokens", (ids, mask, y, y)),
    "too many for one": ("product", (x, y, y)),
    "another width": ("product", (x[:, :3], y)),
    "text": ("tokens", {"input_ids": ["some text"], "attention_mask": mask}),
    "text for the one input": ("product", "some text"),
    "an object": ("product", object()),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_cannot_be_run_is_refused_with_the_same_words(form: str) -> None:
    said = {backend: refusal(backend, *REFUSED[form]) for backend in BACKENDS}
    assert len(set(said.values())) == 1, said
    assert "Expected" in said["pytorch"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ({"input_ids": ids}, "Tried by name: attention_mask is missing."),
        (
            {"input_ids": ids, "attention_musk": mask},
            "'attention_musk' is none of them (nearest: attention_mask) and attention_mask is missing.",
        ),
        (({"idx": y}, y), "input_ids, attention_mask are missing; as inputs: "),
        ({"input_ids": ["some text"], "attention_mask": mask}, "tokenize text first"),
        ((), "A batch is an empty tuple. Expected (inputs, label), or inputs."),
    ],
)
def test_the_reason_is_told(backend: str, batch: Any, why: str) -> None:
    with pytest.raises(DataError, match=re.escape(why)):
        opened(backend, "tokens").split(batch)


leaves = st.sampled_from([ids, mask, x, y, None, "text", 1.5, 3, b"bytes", object()])
anything = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.sampled_from(["input_ids", "attention_mask", "labels", "idx"]), inner, max_size=4),
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(anything)
def test_anything_is_split_or_refused(batch: Any) -> None:
    graphs = []
    for backend in BACKENDS:
        try:
            inputs, _ = opened(backend, "tokens").split(batch)
            outcome = str(dict(zip(("input_ids", "attention_mask"), inputs.kwargs.values(), strict=False)))
        except DataError as error:
            outcome = str(error)
        graphs += [outcome] if backend != "pytorch" else []  # which does not try everything
    assert graphs[0] == graphs[1]


def test_keys_that_name_no_input_are_refused_where_that_is_asked_for() -> None:
    slots = [Slot(name, f"{name}:0", np.dtype("int64"), (None, None)) for name in named]
    assert set(Fitting(slots)({**named, "idx": ids})[0].kwargs) == {"input_ids:0", "attention_mask:0"}
    with pytest.raises(DataError, match="'idx' is none of them"):
        Fitting(slots, strict=True)({**named, "idx": ids})


def test_whole_numbers_may_come_as_floats() -> None:
    slot = Slot("n", "n:0", np.dtype("int64"), (None,))
    assert slot.array(np.array([1.0, 2.0])).dtype == np.int64
    for wrong in (0.5, np.nan, np.inf):
        with pytest.raises(DataError, match="not whole"):
            slot.array(np.array([1.0, wrong]))


def test_tuples_of_other_types_are_read_anew() -> None:
    backend = backend_for(Tokens().eval(), Settings())
    for batch, label in (((ids, mask), None), ((named, y), y), ((ids, mask, y), y), ([[ids, mask], 7], 7)):
        inputs, found = backend.split(batch)
        assert inputs.batch_size == 3
        assert found is label


# -- samples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_inputs_are_cut_and_repeated(kind: Callable[[Any], Any]) -> None:
    inputs = Inputs((kind(x),), {"ids": kind(ids), "scale": kind(np.float32(2)), "flag": True}, mask > 0)
    assert inputs.batch_size == 3
    more = inputs.resized(5)
    np.testing.assert_array_equal(np.asarray(more.args[0]), x[[0, 1, 2, 0, 1]])
    np.testing.assert_array_equal(np.asarray(more.kwargs["ids"]), ids[[0, 1, 2, 0, 1]])
    assert more.kwargs["scale"] == 2
    assert more.kwargs["flag"] is True
    assert more.mask is not None
    np.testing.assert_array_equal(more.mask, mask[[0, 1, 2, 0, 1]] > 0)
    assert [part.batch_size for part in inputs.parts(2)] == [2, 1]
    np.testing.assert_array_equal(np.concatenate([part.args[0] for part in inputs.parts(2)]), x)
    assert inputs.parts(3) == [inputs]
    assert inputs.rows(slice(1, None)).batch_size == 2


# -- padding -------------------------------------------------------------------------------------------------


def test_masks_are_known_by_name() -> None:
    assert find_mask([("ids", ids), ("bert/input_mask:0", mask)]) is not None
    assert find_mask([("ids", ids)]) is None
    assert find_mask([("mask", y)]) is None


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=5))
def test_real_rows_are_the_same_however_tokens_are_laid_out(flags: list[list[bool]]) -> None:
    real = np.array(flags)
    hidden = np.arange(real.size * 2.0).reshape(*real.shape, 2)
    wanted = [hidden[place] for place in zip(*np.nonzero(real), strict=True)]
    for array in (hidden, hidden.reshape(-1, 2)):
        found = real_rows(array, real)
        assert found is not None
        np.testing.assert_array_equal(found, np.reshape(wanted, (-1, 2)))
    assert real_rows(hidden, None) is None


def test_what_counts_as_rows_of_tokens() -> None:
    real = np.array([[True, False], [True, True]])
    assert real_rows(np.zeros((2, 3)), real) is None
    assert real_rows(np.zeros((2, 3, 4, 5)), real) is None


@pytest.mark.parametrize("form", ["dict", "tuple", "tuple and label", "label last"])
def test_padding_is_left_out_of_ranges_by_all(form: str) -> None:
    ranges = []
    for name in BACKENDS:
        backend = opened(name, "tokens")
        wanted = next(op.name for op in backend.ops() if op.kind != "embedding")
        noisy = {"input_ids": np.where(mask, ids, LOUD), "attention_mask": mask}
        given = {"dict": noisy, "tuple": tuple(noisy.values()), "label last": (*noisy.values(), y)}
        batch = given.get(form, (tuple(noisy.values()), y))
        seen = collect(backend, [backend.split(batch)[0]], 3)[wanted]
        ranges.append((seen.low, seen.high))
    assert ranges[0][1] < 2
    assert ranges == [pytest.approx(ranges[0])] * 3


# -- notes ---------------------------------------------------------------------------------------------------


def test_notes_on_ops() -> None:
    fp32, int8 = Scheme.fp32(), Scheme.int8()
    plain, odd = Op("a", "linear", (fp32, int8)), Op("b", "linear", (fp32,), note="its weight is shared")
    assert notes_on([plain], "Linear") == []
    assert notes_on([plain, odd], "Linear") == ["b: its weight is shared"]
    assert notes_on([odd, Op("c", "linear", (fp32,), note=odd.note)], "Linear")[0] == f"b, c: {odd.note}"
    assert notes_on([odd], "Linear")[1:] == ["no op of the model can be int8 here, so nothing is quantized"]
    assert notes_on([], "Linear") == ["the model has no op that can be quantized (Linear)"]


def test_samples_that_are_written_one_behind_the_other_stay_together() -> None:
    """Such as the words of several bags, and where each bag begins."""
    bags = Inputs((np.arange(40), np.asarray([0, 9, 13, 30])))
    assert bags.resized(2) is bags
    assert bags.parts(8) == [bags]
    assert Inputs((np.arange(4), np.zeros((7, 2)))).resized(2).batch_size == 2


def test_recurrent_state_is_cut_along_its_samples() -> None:
    def told(*sizes: int) -> np.ndarray[Any, Any]:
        return np.broadcast_to(np.arange(sizes[1], dtype=np.float32)[:, None], sizes)

    x = np.arange(6.0)[:, None]
    named = Inputs(kwargs={"state": told(2, 6, 3), "x": x}).resized(2)
    assert named.batch_size == 2
    assert np.array_equal(named.kwargs["state"], told(2, 2, 3))
    (one,) = Inputs((x, (told(1, 6, 3), told(4, 6, 3)))).rows(slice(4, None)).args[1:]
    assert [part[0, :, 0].tolist() for part in one] == [[4, 5], [4, 5]]
    # As many layers as samples: the name tells.
    few = {"x": x[:2], "h0": told(2, 2, 3), "words": told(2, 2, 3)}
    kept = Inputs(kwargs=few).resized(1).kwargs
    assert [array.shape for array in kept.values()] == [(1, 1), (2, 1, 3), (1, 2, 3)]
