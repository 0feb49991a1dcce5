"""What a CPU can do is read from its flags, as far as oneDNN may use them; what cannot be tuned on is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import octune.machine as module
from octune.backends import Settings, backend_for
from octune.errors import UnsupportedError
from octune.machine import LIMITS, Machine, pretending, probe_machine
from tests.machines import AMX, ARM, AVX2, VNNI

FLAGS = "fpu sse4_1 sse4_2 avx avx2 avx512f avx512bw avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """A machine of that architecture, whose /proc/cpuinfo says this."""

    def probed(
        text: str = f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {FLAGS}\n",
        architecture: str = "x86_64",
    ) -> Machine:
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text(text)
        monkeypatch.setattr(module, "Path", lambda name: cpuinfo)
        monkeypatch.setattr(module.platform, "machine", lambda: architecture)
        module._probed.cache_clear()
        return probe_machine()

    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)
    yield probed
    module._probed.cache_clear()


def test_flags_that_matter_are_read_and_the_others_are_not(cpu: Callable[..., Machine]) -> None:
    machine = cpu()
    assert machine.cpu == "Some CPU"
    assert set(machine.features) == set(FLAGS.split()) - {"fpu", "sse4_2", "avx512bw"}
    assert machine.cores >= 1
    assert (machine.exact_int8, machine.bf16, machine.refused) == (True, True, "")


@pytest.mark.parametrize("variable", LIMITS)
@pytest.mark.parametrize(
    ("level", "generation", "exact_int8", "bf16"),
    [
        ("SSE41", "x86_64", False, False),
        ("AVX", "x86_64", False, False),
        ("AVX2", "AVX2", False, False),
        ("avx2", "AVX2", False, False),
        ("AVX512_CORE", "AVX512", False, False),
        ("AVX512_CORE_VNNI", "AVX512-VNNI", True, False),
        ("AVX512_CORE_BF16", "AVX512-VNNI", True, True),
        ("AVX512_CORE_FP16", "AVX512-VNNI", True, True),
        ("AVX10_1_512", "AVX512-VNNI", True, True),
        ("AVX10_2", "AVX512-VNNI", True, True),
        ("AVX10_2_512", "AVX512-VNNI", True, True),
        ("AVX512_CORE_AMX", "AMX", True, True),
        ("AVX512_CORE_AMX_FP16", "AMX", True, True),
        ("AVX10_1_512_AMX", "AMX", True, True),
        ("AVX10_1_512_AMX_FP16", "AMX", True, True),
        ("AVX10_2_AMX_2", "AMX", True, True),
        ("AVX10_2_512_AMX_2", "AMX", True, True),
        ("no such level", "AMX", True, True),
        ("ALL", "AMX", True, True),
        ("", "AMX", True, True),
    ],
)
def test_what_onednn_may_not_use_is_not_there(
    variable: str,
    level: str,
    generation: str,
    exact_int8: bool,
    bf16: bool,
    cpu: Callable[..., Machine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, level)
    machine = cpu()
    assert (machine.generation, machine.exact_int8, machine.bf16) == (generation, exact_int8, bf16)


def test_a_limit_takes_away_and_adds_nothing(
    cpu: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI")
    assert cpu("flags : sse4_1 avx avx2").features == ("sse4_1", "avx", "avx2")


def test_a_limit_that_is_set_while_we_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real machine, whatever it is."""
    before = probe_machine()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    limited = probe_machine()
    assert limited.features == tuple(feature for feature in before.features if feature in AVX2.features)
    assert not limited.exact_int8
    assert not limited.bf16
    monkeypatch.undo()
    assert probe_machine() == before


@pytest.mark.parametrize(
    ("machine", "exact_int8", "bf16"), [(AVX2, False, False), (VNNI, True, False), (AMX, True, True)]
)
def test_what_follows_from_features(machine: Machine, exact_int8: bool, bf16: bool) -> None:
    assert (machine.exact_int8, machine.bf16, machine.refused) == (exact_int8, bf16, "")
    assert (machine.runs("int8"), machine.runs("fp32"), machine.runs("bf16")) == (True, True, bf16)


@pytest.mark.parametrize(
    ("features", "generation"),
    [
        (("avx2",), "AVX2"),
        (("avx2", "avx_vnni"), "AVX-VNNI"),
        (("avx2", "avx512f"), "AVX512"),
        (("avx2", "avx512f", "avx512_vnni"), "AVX512-VNNI"),
        (("avx2", "avx512f", "avx512_vnni", "amx_int8"), "AMX"),
        ((), "x86_64"),
    ],
)
def test_generations_have_names(features: tuple[str, ...], generation: str) -> None:
    assert Machine("a CPU", "x86_64", 2, features, None).generation == generation


def test_another_kind_of_cpu_is_refused_before_anything_is_done(cpu: Callable[..., Machine]) -> None:
    machine = cpu("Features : fp asimd asimddp i8mm bf16\n", "aarch64")
    assert machine.features == ("asimddp", "i8mm", "bf16")
    assert not machine.exact_int8
    assert not machine.bf16
    with (
        pretending(machine),
        pytest.raises(
            UnsupportedError, match=r"on x86-64, and this CPU is aarch64\. Tune on an x86-64 machine"
        ),
    ):
        backend_for("whatever model", Settings())
    assert "docs/cpus.md" in machine.refused
    assert (Path(__file__).parents[1] / "docs/cpus.md").exists()


def test_what_compiled_code_may_miss() -> None:
    assert AVX2.lacks(AVX2.to_json()) == AMX.lacks(AVX2.to_json()) == ()
    assert AVX2.lacks(VNNI.to_json()) == ("avx512f", "avx512_vnni")
    assert AVX2.lacks(ARM.to_json()) == ("aarch64",)


@pytest.mark.parametrize("machine", [probe_machine(), AMX, ARM], ids=lambda machine: machine.cpu)
def test_a_stamp_is_plain_data(machine: Machine) -> None:
    stamp = machine.to_json()
    assert json.loads(json.dumps(stamp)) == stamp
    assert Machine(**stamp | {"features": tuple(stamp["features"])}) == machine


def test_pretending_ends() -> None:
    real = probe_machine()
    with pretending(AMX):
        with pretending(AVX2) as inner:
            assert probe_machine() is inner is AVX2
        assert probe_machine() is AMX
    with pytest.raises(KeyError), pretending(AMX):
        raise KeyError
    assert probe_machine() is real
