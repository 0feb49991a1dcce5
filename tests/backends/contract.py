"""What every backend must do. A backend's tests subclass :class:`BackendContract` and provide ``subject``.

class TestTorch(BackendContract):
    @pytest.fixture(scope="class")
    def subject(self): return Subject(model, batches)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octune.backends import Backend, Settings, backend_for
from octune.calibration import Ranges, collect, merged
from octune.calibration import observed as seen_in
from octune.errors import PlanError
from octune.machine import probe_machine
from octune.plan import Plan, Scheme


@dataclass
class Subject:
    """A small real model, a few batches of (inputs, label), and how to build the architecture again."""

    model: Any
    batches: list[Any]
    factory: Callable[[], Any] | None = None


def prepared(model: Any, batches: list[Any], settings: Settings | None = None) -> Backend:
    """A backend as the engine gets it ready."""
    backend = backend_for(model, settings or Settings())
    backend.prepare(backend.split(batches[0])[0])
    return backend


def calibrated(backend: Backend, batches: list[Any]) -> Ranges:
    """Gets a backend ready, as the engine does, and collects ranges."""
    backend.prepare(backend.split(batches[0])[0])
    return observed(backend, batches)


def observed(backend: Backend, batches: list[Any]) -> Ranges:
    """Ranges as the engine collects them."""
    return collect(backend, (backend.split(batch)[0] for batch in batches), len(batches))


def int8_plan(backend: Backend, ranges: Ranges) -> Plan:
    """Every op that ran in its first int8 scheme."""
    schemes = {
        op.name: next((s for s in op.schemes if not s.is_float), Scheme.fp32())
        for op in backend.ops()
        if op.name in ranges
    }
    return Plan(schemes)


class BackendContract:
    """The contract."""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Subject:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, subject: Subject) -> Backend:
        return prepared(subject.model, subject.batches)

    @pytest.fixture(scope="class")
    @classmethod
    def ranges(cls, backend: Backend, subject: Subject) -> Ranges:
        return observed(backend, subject.batches)

    @pytest.fixture(scope="class")
    @classmethod
    def inputs(cls, backend: Backend, subject: Subject) -> Any:
        return backend.split(subject.batches[0])[0]

    def test_ops_have_unique_names_and_can_always_stay_fp32(self, backend: Backend) -> None:
        ops = backend.ops()
        assert ops
        assert len({op.name for op in ops}) == len(ops)
        assert all(Scheme.fp32() in op.schemes for op in ops)
        assert all(op.note for op in ops if len(op.schemes) == 1)

    def test_every_op_that_ran_was_observed(self, backend: Backend, ranges: Ranges) -> None:
        # A backend may keep what it saw of an op's output, too, as "name:output", and of a second operand as
        # "name:b".
        assert {name.removesuffix(":output").removesuffix(":b") for name in ranges} <= {
            op.name for op in backend.ops()
        }
        assert ranges
        assert all(stats.low <= stats.high and stats.shape for stats in ranges.values())

    def test_multiply_adds_are_counted(
        self, backend: Backend, ranges: Ranges, inputs: Any, subject: Subject
    ) -> None:
        work = backend.work(inputs)
        assert work is not None
        ops = {op.name: op for op in backend.ops()}
        assert set(work.ops) <= set(ops)
        assert not work.uncounted
        # a weight is used at least once for a row, wherever it multiplies
        rows = backend.batch_size(inputs)
        for name, count in work.ops.items():
            assert count >= ops[name].parameters * rows or count == 0
        assert sum(work.ops.values()) > 0.5 * work.total, work
        double = backend.work(backend.resized(inputs, 2 * rows))
        assert double is not None
        assert double.ops == {name: 2 * count for name, count in work.ops.items()}
        assert double.unseen == {name: 2 * count for name, count in work.unseen.items()}

    def test_the_empty_plan_is_fp32(self, backend: Backend, ranges: Ranges, inputs: Any) -> None:
        wanted, got = (
            backend.run(backend.fp32_model(), inputs),
            backend.run(backend.apply(Plan(), ranges), inputs),
        )
        assert set(wanted) == set(got)
        for name in wanted:
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-3, atol=1e-4)

    def test_int8_is_close_smaller_and_not_the_same(
        self, backend: Backend, ranges: Ranges, inputs: Any
    ) -> None:
        baseline, model = backend.fp32_model(), backend.apply(int8_plan(backend, ranges), ranges)
        wanted, got = backend.run(baseline, inputs), backend.run(model, inputs)
        for name, array in wanted.items():
            assert not np.array_equal(array, got[name]), "int8 that equals fp32 to the bit is not int8"
            assert np.abs(array - got[name]).mean() < 0.25 * np.abs(array - array.mean()).mean() + 1e-3
        assert backend.size(model) < 0.5 * backend.size(baseline)

    def test_applying_a_plan_leaves_the_baseline_alone(
        self, backend: Backend, ranges: Ranges, inputs: Any
    ) -> None:
        before = {name: array.copy() for name, array in backend.run(backend.fp32_model(), inputs).items()}
        fingerprint = backend.fingerprint()
        backend.run(backend.apply(int8_plan(backend, ranges), ranges), inputs)
        after = backend.run(backend.fp32_model(), inputs)
        assert all(np.array_equal(before[name], after[name]) for name in before)
        assert backend.fingerprint() == fingerprint

    def test_the_same_plan_gives_the_same_model(self, backend: Backend, ranges: Ranges, inputs: Any) -> None:
        plan = int8_plan(backend, ranges)
        first, second = (backend.run(backend.apply(plan, ranges), inputs) for _ in range(2))
        assert all(np.array_equal(first[name], second[name]) for name in first)

    def test_every_scheme_of_every_kind_of_op_runs(
        self, backend: Backend, ranges: Ranges, inputs: Any
    ) -> None:
        kinds = {op.kind: op for op in backend.ops() if op.name in ranges}
        wanted = backend.run(backend.fp32_model(), inputs)
        for op in kinds.values():
            for scheme in op.schemes:
                got = backend.run(backend.apply(Plan({op.name: scheme}), ranges), inputs)
                for name, array in wanted.items():
                    assert np.isfinite(got[name]).all()
                    assert (
                        np.abs(array - got[name]).mean() < 0.25 * np.abs(array - array.mean()).mean() + 1e-3
                    ), (op.name, str(scheme))

    def test_observing_changes_nothing(self, subject: Subject) -> None:
        backend = prepared(subject.model, subject.batches)
        ops, notes = backend.ops(), list(backend.notes)
        observed(backend, subject.batches)
        assert backend.ops() == ops
        assert list(backend.notes) == notes

    def test_a_plan_needs_no_observing(
        self, backend: Backend, ranges: Ranges, inputs: Any, subject: Subject
    ) -> None:
        plan = int8_plan(backend, ranges)
        fresh = prepared(subject.model, subject.batches)
        wanted, got = (
            backend.run(backend.apply(plan, ranges), inputs),
            fresh.run(fresh.apply(plan, ranges), inputs),
        )
        assert all(np.array_equal(wanted[name], got[name]) for name in wanted)

    def test_what_was_applied_before_does_not_matter(
        self, backend: Backend, ranges: Ranges, inputs: Any
    ) -> None:
        plan = int8_plan(backend, ranges)
        wanted = backend.run(backend.apply(plan, ranges), inputs)
        backend.apply(Plan(dict(list(plan.items())[::2])), ranges)
        got = backend.run(backend.apply(plan, ranges), inputs)
        assert all(np.array_equal(wanted[name], got[name]) for name in wanted)

    def test_every_fp32_model_is_a_copy_of_its_own(self, backend: Backend, inputs: Any) -> None:
        first, second = backend.fp32_model(), backend.fp32_model()
        assert first is not second
        assert all(
            np.array_equal(a, b)
            for a, b in zip(
                backend.run(first, inputs).values(), backend.run(second, inputs).values(), strict=True
            )
        )

    def test_a_plan_that_does_not_fit_is_refused(self, backend: Backend, ranges: Ranges) -> None:
        with pytest.raises(PlanError, match=r"no\.such\.op"):
            backend.apply(Plan({"no.such.op": Scheme.int8()}), ranges)

    def test_other_batch_sizes_run(self, backend: Backend, ranges: Ranges, inputs: Any) -> None:
        model = backend.apply(int8_plan(backend, ranges), ranges)
        for samples in (1, 3):
            outputs = backend.run(model, backend.resized(inputs, samples))
            assert all(len(array) == samples for array in outputs.values())

    def test_what_is_looked_at_is_what_a_model_answers(
        self, backend: Backend, ranges: Ranges, inputs: Any
    ) -> None:
        for plan in (Plan(), int8_plan(backend, ranges)):
            wanted = backend.run(backend.apply(plan, ranges), inputs)
            (got,) = backend.outputs(plan, ranges, [inputs])
            assert list(got) == list(wanted)
            for name, array in wanted.items():
                assert np.allclose(got[name], array, rtol=1e-3, atol=1e-3 * np.abs(array).max())

    def test_ops_can_be_timed(self, backend: Backend, ranges: Ranges) -> None:
        op = next(op for op in backend.ops() if op.name in ranges and op.can("int8"))
        calls = [backend.alone(op, scheme, ranges) for scheme in op.schemes]
        for call in calls * 2:  # made first, run in turns
            call()

    def test_it_says_how_fast_its_number_formats_are(self, backend: Backend) -> None:
        found = type(backend).self_test()
        assert {"int8 static", "int8 dynamic"} <= set(found.speed)
        assert min(found.speed.values()) > 0

    def test_damage_ranks_int8_above_bf16(self, backend: Backend, ranges: Ranges, inputs: Any) -> None:
        op = next(
            (op for op in backend.ops() if op.name in ranges and op.can("int8") and op.can("bf16")), None
        )
        if op is None:
            pytest.skip(
                f"no op of the {backend.name} backend runs in bf16 on this CPU ({probe_machine().generation})"
            )
        int8, bf16 = next(s for s in op.schemes if not s.is_float), Scheme.bf16()
        harm = backend.harm({op.name: [int8, bf16]}, ranges, [inputs])
        assert 0 < harm[op.name, bf16] < harm[op.name, int8]

    def test_calibration_in_parts_is_calibration_in_one_piece(
        self, backend: Backend, ranges: Ranges, subject: Subject
    ) -> None:
        inputs = [backend.split(batch)[0] for batch in subject.batches]
        parts = [seen_in(backend, [batch]) for batch in inputs]
        assert merged(parts, ranges.samples).to_bytes() == ranges.to_bytes()

    def test_the_harm_of_an_op_is_the_same_whoever_probes_the_others(
        self, backend: Backend, ranges: Ranges, inputs: Any
    ) -> None:
        candidates = {
            op.name: [s for s in op.schemes if s.dtype != "fp32"] for op in backend.ops() if op.name in ranges
        }
        groups = backend.probed_together([name for name in candidates if candidates[name]])
        whole = backend.harm(candidates, ranges, [inputs])
        parts = [
            backend.harm(candidates, ranges, [inputs], [name for group in some for name in group])
            for some in (groups[::2], groups[1::2])
        ]
        assert parts[0].keys().isdisjoint(parts[1])
        assert parts[0] | parts[1] == whole  # to the bit

    def test_saved_and_loaded_it_is_the_same(
        self, backend: Backend, ranges: Ranges, inputs: Any, subject: Subject, tmp_path: Path
    ) -> None:
        plan = int8_plan(backend, ranges)
        model = backend.apply(plan, ranges)
        writer = backend.writer()
        kept = [getattr(writer, "__self__", None), *(cell.cell_contents for cell in writer.__closure__ or ())]
        assert all(value is not backend for value in kept), "a result would keep the whole backend alive"
        metadata = writer(model, tmp_path)
        loaded = type(backend).load(tmp_path, metadata, subject.factory)
        wanted, got = backend.run(model, inputs), backend.run(loaded, inputs)
        assert all(np.array_equal(wanted[name], got[name]) for name in wanted)
