"""The user's data, whatever its form, can be iterated more than once or is refused with a reason."""

from __future__ import annotations

import itertools
from collections import UserDict
from collections.abc import Iterator

import numpy as np
import pytest

from octune.data import as_batches
from octune.errors import DataError


class Loader:
    """Walks anew each time, as a DataLoader does."""

    def __init__(self, count: int) -> None:
        self.count, self.walks = count, 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return iter(range(self.count))


class Indexed:
    """Only __getitem__, as a map-style data set."""

    def __getitem__(self, index: int) -> int:
        if index > 2:
            raise IndexError
        return index


@pytest.mark.parametrize(
    "data", [[0, 1, 2], (0, 1, 2), Loader(3), Indexed(), range(3), lambda: iter([0, 1, 2]), lambda: [0, 1, 2]]
)
def test_forms_that_can_be_walked_again(data: object) -> None:
    batches = as_batches(data, role="evaluation")
    assert list(batches) == [0, 1, 2]
    assert list(batches) == [0, 1, 2]
    assert batches.first() == 0
    assert batches.notes == ()


def test_a_generator_is_drawn_into_memory() -> None:
    batches = as_batches((n for n in range(3)), role="calibration")
    assert list(batches) == list(batches) == [0, 1, 2]
    assert "can be iterated only once: 3 batches of it were read into memory" in batches.notes[0]


def test_an_endless_generator_ends_at_the_limit() -> None:
    source = itertools.count()
    batches = as_batches(source, role="calibration", limit=4)
    assert list(batches) == list(batches) == [0, 1, 2, 3]
    assert next(source) == 4  # no more than needed was drawn


def test_the_limit_holds_for_every_form() -> None:
    assert list(as_batches([0, 1, 2], role="evaluation", limit=2)) == [0, 1]
    assert list(as_batches(itertools.count, role="evaluation", limit=2)) == [0, 1]


def test_a_loader_is_not_walked_before_it_is_needed() -> None:
    loader = Loader(3)
    batches = as_batches(loader, role="evaluation")
    assert loader.walks == 0
    assert batches.first() == 0
    assert loader.walks == 1


@pytest.mark.parametrize("data", [[], (), iter(()), Loader(0), list])
def test_empty_data_is_refused_when_walked(data: object) -> None:
    batches = as_batches(data, role="calibration")
    with pytest.raises(DataError, match="The calibration data is empty"):
        list(batches)
    with pytest.raises(DataError, match="empty"):
        batches.first()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("data/train", "The evaluation data is the str 'data/train'"),
        (b"data", "is the bytes"),
        ({"input_ids": [1]}, r"one dict with the keys \['input_ids'\].*Put a single batch in a list"),
        (UserDict(input_ids=[1]), "one dict with the keys"),
        (np.zeros((8, 4)), r"one array of shape \(8, 4\).*Put a single batch in a list"),
        (7, "is a int, which cannot be iterated"),
        (None, "is a NoneType, which cannot be iterated"),
        (object(), "cannot be iterated"),
    ],
)
def test_what_is_no_data_is_refused(data: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_batches(data, role="evaluation")


@pytest.mark.parametrize("made", [None, "text", 3])
def test_a_function_must_return_batches(made: object) -> None:
    with pytest.raises(DataError, match="function that returned a"):
        list(as_batches(lambda: made, role="evaluation"))


def test_an_error_of_the_users_own_loader_comes_through() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        list(as_batches(broken, role="evaluation"))


# -- picking by number ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [["a", "b", "c"], ("a", "b", "c"), iter(["a", "b", "c"])])
def test_what_can_be_picked_by_number(data: object) -> None:
    batches = as_batches(data, role="evaluation")
    assert batches.count == 3
    assert batches.pick is not None
    assert [batches.pick(number) for number in (2, 0)] == ["c", "a"]
    assert list(batches.select([2, 0])) == ["c", "a"]
    assert batches.blocks is None


@pytest.mark.parametrize("data", [Loader(3), Indexed(), lambda: [1, 2], {1, 2}])
def test_what_can_only_be_walked(data: object) -> None:
    batches = as_batches(data, role="evaluation")
    assert batches.count is None
    assert batches.pick is None
    with pytest.raises(DataError, match="cannot be picked by number"):
        batches.select([0])


def test_a_class_that_walks_batches_but_picks_samples_is_only_walked() -> None:
    class Both(Loader):
        def __len__(self) -> int:
            return 300

        def __getitem__(self, index: int) -> str:
            return "a sample, not a batch"

    assert as_batches(Both(3), role="evaluation").pick is None


def test_a_loader_in_order_can_be_picked_from() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(10), torch.arange(10) * 2)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    batches = as_batches(loader, role="evaluation")
    assert batches.count == 3
    assert batches.pick is not None
    for number, batch in enumerate(batches):
        picked = batches.pick(number)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(picked, batch, strict=True))
    for other in (
        torch.utils.data.DataLoader(data, batch_size=4, shuffle=True),
        torch.utils.data.DataLoader(data, batch_size=None),
        torch.utils.data.DataLoader(data, sampler=[3, 1, 2]),
        torch.utils.data.DataLoader(data, batch_size=4, num_workers=1),
    ):
        assert as_batches(other, role="evaluation").pick is None


def test_a_limit_holds_for_picking() -> None:
    assert as_batches([1, 2, 3], role="calibration", limit=2).count == 2
