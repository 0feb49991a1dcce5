"""What others have made is loaded without running anything of theirs: each attack is tried, and is shown to
work where the folder is trusted.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import octune
from octune.artifact import MANIFEST, manifest, sealed, write_manifest
from octune.backends.torch.compiled import CompiledModel
from octune.compiling import compile_saved
from octune.errors import ArtifactError
from octune.machine import probe_machine
from octune.trust import made_here, remember
from tests.forged import forged

CONF = """
model: {path: made_by_me:network}
calibration: {data: made_by_me:batches}
evaluation: {data: made_by_me:batches, metric: accuracy}
performance: {compile: never}
tuning: {objective: modelsize}
"""
MINE = """
import torch

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

def batches():
    torch.manual_seed(1)
    images = [torch.randn(32, 16) for _ in range(4)]
    return [(x, network()(x).argmax(1)) for x in images]
"""
needs_compiler = pytest.mark.skipif(probe_machine().compiler is None, reason="needs g++")
X = torch.linspace(-1, 1, 3 * 64).view(3, 1, 8, 8)


def octune_in(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, run in a folder."""
    command = [sys.executable, "-m", "octune", *words]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


class Small(nn.Module):
    """Two kinds of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8 * 64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).relu().flatten(1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that this user made, with its exported program."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("trust") / "model"
    octune.save(
        octune.quantize(Small().eval(), calibration=[torch.randn(8, 1, 8, 8) for _ in range(2)]), folder
    )
    return folder


@pytest.fixture(scope="module")
def compiled(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, compiled by the command."""
    folder = tmp_path_factory.mktemp("compiled") / "model"
    forged(saved, folder.parent, lambda folder, data: None).rename(folder)
    done = octune_in(folder.parent, "compile", "model", "--json")
    assert json.loads(done.stdout)["distance"] <= 0.01, done.stderr
    return folder


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Another machine, or another user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


class TestRecord:
    def test_is_of_this_user_alone_and_holds_what_was_saved(self, saved: Path) -> None:
        place = Path(os.environ["XDG_STATE_HOME"]) / "octune" / "made-here"
        digest = manifest(saved)["digest"]
        assert made_here(digest)
        assert (place / digest).stat().st_mode & 0o777 == 0o600
        assert place.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("digest", ["", "../made-here", "a" * 63, "A" * 64, "a" * 64])
    def test_knows_nothing_else(self, digest: str) -> None:
        assert not made_here(digest)

    def test_that_others_can_write_to_does_not_count(self, elsewhere: Path) -> None:
        digest = hashlib.sha256(b"").hexdigest()
        remember(digest)
        assert made_here(digest)
        (elsewhere / "state" / "octune" / "made-here").chmod(0o777)
        assert not made_here(digest)

    def test_link_to_a_file_of_ones_own_does_not_count_twice(self, elsewhere: Path) -> None:
        remember("b" * 64)
        place = elsewhere / "state" / "octune" / "made-here"
        (place / ("c" * 64)).symlink_to(place / ("b" * 64))
        assert not made_here("c" * 64)

    def test_that_cannot_be_written_is_said_and_nothing_fails(
        self, elsewhere: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (elsewhere / "state").write_text("a file in the way")
        with caplog.at_level(logging.WARNING, "octune"):
            remember("d" * 64)
        assert "cannot be recorded that this model was made here" in caplog.text
        assert not made_here("d" * 64)


@needs_compiler
class TestNativeCode:
    def test_is_unpacked_where_it_is_cleared_up(
        self, compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(tempfile, "tempdir", None)
        model = octune.load(compiled)
        home = tmp_path / f"octune-{os.getuid()}"
        assert os.environ["TMPDIR"] == str(tmp_path)
        assert list(tmp_path.iterdir()) == [home]
        assert any(path.suffix == ".so" for path in home.rglob("*"))
        assert model(X).shape[0] == len(X)
        del model
        gc.collect()
        assert list(home.iterdir()) == []

    def test_made_here_runs(self, compiled: Path) -> None:
        assert isinstance(octune.load(compiled), CompiledModel)

    def test_of_another_machine_is_replaced_by_the_same_model(
        self, compiled: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "octune"):
            model = octune.load(compiled)
        assert not isinstance(model, CompiledModel)
        assert f"'octune compile {compiled}' compiles it here" in caplog.text
        torch.testing.assert_close(model(X), octune.load(compiled, trust=True)(X), atol=0.05, rtol=0)

    def test_compiling_makes_it_ones_own_and_trusts_nothing_else(
        self, compiled: Path, elsewhere: Path
    ) -> None:
        def hostile(folder: Path, data: dict[str, Any]) -> None:
            data["backend"]["origin"] = {"kind": "factory", "reference": "hostile:build", "config": None}

        folder = forged(compiled, elsewhere, hostile)
        compile_saved(folder)
        assert isinstance(octune.load(folder), CompiledModel)
        assert not made_here(manifest(folder)["digest"])

    def test_forged_is_not_run(self, compiled: Path, elsewhere: Path) -> None:
        marker = elsewhere / "marker"
        library = elsewhere / "hostile.so"
        source = (
            f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ fopen("{marker}", "w"); }}'
        )
        build = [str(probe_machine().compiler), "-x", "c", "-", "-shared", "-fPIC", "-o", str(library)]
        subprocess.run(build, input=source, text=True, check=True)

        def other_library(folder: Path, data: dict[str, Any]) -> None:
            package = folder / "compiled.pt2"
            with zipfile.ZipFile(package) as archive:
                held = {name: archive.read(name) for name in archive.namelist()}
            package.unlink()
            with zipfile.ZipFile(package, "w") as archive:
                for name, content in held.items():
                    archive.writestr(name, library.read_bytes() if name.endswith(".so") else content)

        folder = forged(compiled, elsewhere, other_library)
        model = octune.load(folder)
        assert not marker.exists()
        torch.testing.assert_close(model(X), octune.load(compiled)(X), atol=0.05, rtol=0)
        load = f"import octune; octune.load({str(folder)!r}, trust=True)"
        subprocess.run([sys.executable, "-c", load], check=False, capture_output=True)
        assert marker.exists()  # so it would have run

    def test_called_in_another_way_than_it_was_compiled_for_is_not_run(
        self, compiled: Path, elsewhere: Path
    ) -> None:
        """A forger could have native code read beyond what it is given."""
        compile_saved(compiled)

        def wider(folder: Path, data: dict[str, Any]) -> None:
            data["backend"]["compiled"]["signature"]["positional"][0][2] = [None, None, None, None]

        assert isinstance(octune.load(compiled), CompiledModel)
        assert not isinstance(octune.load(forged(compiled, elsewhere, wider)), CompiledModel)


class TestNamedCode:
    @pytest.fixture
    def hostile(self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A module that leaves a marker when it is imported, where Python finds it."""
        marker = elsewhere / "marker"
        (elsewhere / "hostile_code.py").write_text(f"open({str(marker)!r}, 'w')\nbuild = print\n")
        monkeypatch.chdir(elsewhere)
        monkeypatch.syspath_prepend(str(elsewhere))
        monkeypatch.delitem(sys.modules, "hostile_code", raising=False)
        return marker

    @pytest.mark.parametrize("kind", ["factory", "huggingface", "class"])
    def test_is_not_imported(self, saved: Path, hostile: Path, kind: str) -> None:
        def named(folder: Path, data: dict[str, Any]) -> None:
            data["backend"]["origin"] = {
                "kind": kind, "reference": "hostile_code:build", "config": {"model_type": "bert"},
            }  # fmt: skip
            del data["backend"]["program"]

        folder = forged(saved, hostile.parent, named)
        with pytest.raises(ArtifactError, match=r"factory=|not made by you"):
            octune.load(folder)
        assert not hostile.exists()
        if kind == "factory":
            with pytest.raises(ArtifactError):
                octune.load(folder, trust=True)
            assert hostile.exists()

    def test_types_of_outputs_are_not_imported(self, saved: Path, hostile: Path) -> None:
        folder = forged(
            saved,
            hostile.parent,
            lambda folder, data: data["backend"]["program"].update(imports=["hostile_code"]),
        )
        with pytest.raises(ArtifactError, match="nothing that it names is imported"):
            octune.load(folder)
        assert not hostile.exists()

    def test_transformers_are_not_made_to_fetch_code(self, saved: Path, elsewhere: Path) -> None:
        def kernels(folder: Path, data: dict[str, Any]) -> None:
            config = {"model_type": "bert", "text": {"_attn_implementation": "someone/kernels"}}
            reference = "transformers.models.bert.modeling_bert:BertModel"
            data["backend"]["origin"] = {"kind": "huggingface", "reference": reference, "config": config}
            del data["backend"]["program"]

        with pytest.raises(ArtifactError, match="code from elsewhere"):
            octune.load(forged(saved, elsewhere, kernels))

    @pytest.mark.parametrize("reference", ["transformers.utils.hub:cached_file", "os:system"])
    def test_only_models_of_transformers_are_built(
        self, saved: Path, elsewhere: Path, reference: str
    ) -> None:
        def other(folder: Path, data: dict[str, Any]) -> None:
            data["backend"]["origin"] = {"kind": "huggingface", "reference": reference, "config": {}}
            del data["backend"]["program"]

        with pytest.raises(ArtifactError, match="not the class of a model in transformers"):
            octune.load(forged(saved, elsewhere, other))


class TestFilesOutside:
    @pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../outside"])
    def test_in_the_manifest_are_refused(self, saved: Path, tmp_path: Path, name: str) -> None:
        (tmp_path / "outside").write_text("x")
        folder = forged(saved, tmp_path, lambda folder, data: None)
        data = json.loads((folder / MANIFEST).read_text())
        data["files"][name] = hashlib.sha256(b"x").hexdigest()
        write_manifest(folder, sealed(data))
        with pytest.raises(ArtifactError, match="names a file outside the folder"):
            octune.load(folder)

    def test_behind_links_are_refused(self, saved: Path, tmp_path: Path) -> None:
        def linked(folder: Path, data: dict[str, Any]) -> None:
            outside = tmp_path / "outside.safetensors"
            (folder / "model.safetensors").rename(outside)
            (folder / "model.safetensors").symlink_to(outside)

        with pytest.raises(ArtifactError, match="names a file outside the folder"):
            octune.load(forged(saved, tmp_path, linked))

    @pytest.mark.parametrize("words", [("compile",), ("export", "--layout", "hf", "--output", "out")])
    def test_behind_links_that_the_manifest_does_not_name_are_not_copied(
        self, saved: Path, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        (tmp_path / "secret").write_text("secret")
        folder = forged(saved, tmp_path, lambda folder, data: None)
        (folder / "huggingface").mkdir()
        (folder / "huggingface" / "vocab.txt").symlink_to(tmp_path / "secret")
        done = octune_in(tmp_path, words[0], str(folder), *words[1:])
        assert done.returncode == 2
        assert "names a file outside the folder" in done.stderr
        copies = [path for path in tmp_path.rglob("vocab.txt") if not path.is_symlink()]
        assert copies == []

    @pytest.mark.parametrize("name", ["model.safetensors", MANIFEST, "README.md"])
    def test_pipes_are_not_waited_for(self, saved: Path, tmp_path: Path, name: str) -> None:
        folder = forged(saved, tmp_path, lambda folder, data: None)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        with pytest.raises(ArtifactError, match="neither a file nor a folder"):
            octune.load(folder)


def test_nesting_without_end_is_damage(saved: Path, tmp_path: Path) -> None:
    folder = forged(saved, tmp_path, lambda folder, data: None)
    for deep in ("[" * 100_000 + "]" * 100_000, '{"files": ' * 300 + "1" + "}" * 300):
        (folder / MANIFEST).write_text(deep)
        with pytest.raises(ArtifactError, match="nested too deeply"):
            octune.load(folder)


class TestWorkspaces:
    @pytest.fixture(scope="class")
    def workspace(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A finished run of a model that a factory builds."""
        place = tmp_path_factory.mktemp("workspace")
        (place / "made_by_me.py").write_text(MINE)
        (place / "conf.yaml").write_text(CONF)
        assert octune_in(place, "tune", "conf.yaml", "--workspace", "run", "--quiet").returncode in (0, 1)
        return place

    def test_of_ones_own_go_on(self, workspace: Path) -> None:
        assert octune_in(workspace, "resume", "run", "--quiet", "--overwrite").returncode in (0, 1)

    def test_with_other_limits_are_still_ones_own(self, workspace: Path) -> None:
        shutil.copytree(workspace / "run", workspace / "limited")
        written = workspace / "limited" / "config.yaml"
        config = yaml.safe_load(written.read_text())
        config["tuning"] |= {"max_trials": 7, "timeout": 0.5}
        written.write_text(yaml.safe_dump(config))
        assert octune_in(workspace, "resume", "limited", "--quiet", "--overwrite").returncode in (0, 1)

    @pytest.mark.parametrize(
        ("section", "what"),
        [
            ({"evaluation": {"postprocess": {"hostile_step:build": 1}}}, "hostile_step:build"),
            ({"evaluation": {"data": {"factory": "hostile_step:build"}}}, "hostile_step:build"),
            ({"evaluation": {"metric": "hostile_step:build"}}, "hostile_step:build"),
            ({"model": {"path": "hostile_step:build"}}, "hostile_step:build"),
            ({"engine": {"name": "ray", "address": "ray://127.0.0.1:1"}}, "ray://127.0.0.1:1"),
            ({"tuning": {"mlflow": "http://127.0.0.1:1"}}, "http://127.0.0.1:1"),
        ],
    )
    def test_whose_configuration_was_changed_are_not_ones_own(
        self, workspace: Path, tmp_path: Path, section: dict[str, Any], what: str
    ) -> None:
        """From the folder where the user has begun a run like it, and with a file of a function's name."""
        marker, place = tmp_path / "marker", tmp_path.name
        (workspace / "hostile_step.py").write_text(f"open({str(marker)!r}, 'w')\nbuild = print\n")
        (workspace / "hostile_step:build").touch()
        shutil.copytree(workspace / "run", workspace / place)
        written = workspace / place / "config.yaml"
        config = yaml.safe_load(written.read_text())
        for name, changed in section.items():
            config[name] = {**config.get(name, {}), **changed}
        written.write_text(yaml.safe_dump(config))
        done = octune_in(workspace, "resume", place)
        (workspace / "hostile_step:build").unlink()
        assert done.returncode == 2
        assert "--trust" in done.stderr
        assert what in done.stderr
        assert not marker.exists()

    def test_of_another_folder_name_another_model(self, workspace: Path, tmp_path: Path) -> None:
        """A name that the user has used is not opened where somebody else's file has it."""
        marker = tmp_path / "marker"
        shutil.copytree(workspace, tmp_path / "copy")
        (tmp_path / "copy" / "made_by_me.py").write_text(f"open({str(marker)!r}, 'w')\n" + MINE)
        for words in (("resume", "run"), ("replay", "run", "--output", "again")):
            done = octune_in(tmp_path / "copy", *words)
            assert (done.returncode, "not" in done.stderr) == (2, True), done.stderr
        assert not marker.exists()

    def test_of_others_name_nothing_that_runs(self, workspace: Path, tmp_path: Path) -> None:
        marker = tmp_path / "marker"
        copied = tmp_path / "copy"
        forged_run = copied / "run"
        shutil.copytree(workspace, copied)
        (copied / "made_by_me.py").write_text(f"open({str(marker)!r}, 'w')\n" + MINE)
        other = {"XDG_STATE_HOME": str(tmp_path / "state")}
        done = octune_in(copied, "resume", str(forged_run), **other)
        assert done.returncode == 2
        assert "made_by_me:network" in done.stderr
        assert "--trust" in done.stderr
        done = octune_in(copied, "replay", str(forged_run), "--output", "again", **other)
        assert done.returncode == 2
        assert "not opened" in done.stderr
        assert not marker.exists()
        assert octune_in(copied, "replay", str(forged_run), **other).returncode in (0, 1)
        assert not marker.exists()
        octune_in(copied, "resume", str(forged_run), "--trust", "--quiet", "--overwrite", **other)
        assert marker.exists()  # so it would have run
