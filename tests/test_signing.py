"""Who made a saved model: signatures that others can check, and that no change survives."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from octune.artifact import sealed, write_manifest
from octune.cli import app
from octune.errors import ArtifactError, ConfigError, MissingDependency, OctuneError
from octune.folders import sums
from octune.signing import new_key, sign, verify

pytest.importorskip("cryptography")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """What is signed of a model is its manifest, whatever is in it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"weights")
    write_manifest(folder, sealed({"format": 1, "files": sums(folder), "framework": "pytorch"}))
    return folder


@pytest.fixture
def key(tmp_path: Path) -> Path:
    new_key(tmp_path / "me.pem")
    return tmp_path / "me.pem"


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def test_a_folder_that_was_signed_is_verified_wherever_it_is(saved: Path, key: Path, tmp_path: Path) -> None:
    assert key.stat().st_mode & 0o777 == 0o600
    sign(saved, key)
    verify(saved, public(key))
    shutil.copytree(saved, tmp_path / "copied")
    verify(tmp_path / "copied", public(key))


def forged(folder: Path) -> None:
    """Whoever changes a folder makes its checksums fit."""
    (folder / "weights.safetensors").write_bytes(b"hostile")
    data = json.loads((folder / "octune.json").read_text())
    files = {"weights.safetensors": sums(folder)["weights.safetensors"]}
    write_manifest(folder, sealed({**data, "files": files}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (forged, "changed after it was signed, or somebody else"),
        (
            lambda folder: (folder / "octune.json.sig").write_bytes(b"0" * 64),
            "not a signature of this folder",
        ),
        (lambda folder: (folder / "octune.json.sig").write_bytes(b""), "not a signature of this folder"),
        (lambda folder: (folder / "octune.json.sig").unlink(), "no signature that can be read"),
        (lambda folder: (folder / "weights.safetensors").write_bytes(b"w"), "sha256 differs"),
        (lambda folder: (folder / "compiled.pt2").write_bytes(b"native"), "does not name it"),
        (lambda folder: (folder / "huggingface").symlink_to(folder.parent), "outside the folder"),
        (lambda folder: (folder / "octune.json").unlink(), "not a saved model"),
    ],
)
def test_what_is_not_what_was_signed_is_refused(
    saved: Path, key: Path, change: Callable[[Path], object], said: str
) -> None:
    sign(saved, key)
    change(saved)
    with pytest.raises(ArtifactError, match=said):
        verify(saved, public(key))


def test_the_key_of_somebody_else_does_not_verify(saved: Path, key: Path, tmp_path: Path) -> None:
    sign(saved, key)
    with pytest.raises(ArtifactError, match="somebody else has signed it"):
        verify(saved, new_key(tmp_path / "other.pem"))


def test_what_is_not_a_key_is_told(saved: Path, key: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists, and a key is not replaced"):
        new_key(key)
    with pytest.raises(ConfigError, match="is not a private key"):
        sign(saved, public(key))
    with pytest.raises(ConfigError, match="is not a public key"):
        verify(saved, key)
    with pytest.raises(ConfigError, match="cannot be read"):
        sign(saved, tmp_path / "none.pem")


def test_other_tools_read_it(saved: Path, key: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    signature = sign(saved, key)
    words = ["-pubin", "-inkey", public(key), "-rawin", "-in", saved / "octune.json", "-sigfile", signature]
    done = subprocess.run(["openssl", "pkeyutl", "-verify", *map(str, words)], capture_output=True, text=True)
    assert "Verified Successfully" in done.stdout, done.stderr


def test_the_commands(saved: Path, tmp_path: Path) -> None:
    mine = str(tmp_path / "mine.pem")
    wrong = CliRunner().invoke(app, ["sign", str(tmp_path / "none"), "--key", mine, "--new-key"])
    assert isinstance(wrong.exception, OctuneError)
    assert not Path(mine).exists()
    made = CliRunner().invoke(app, ["sign", str(saved), "--key", mine, "--new-key"])
    assert made.exit_code == 0, made.output
    assert f"{mine}.pub" in made.output
    assert CliRunner().invoke(app, ["verify", str(saved), "--key", f"{mine}.pub"]).exit_code == 0
    (saved / "octune.json.sig").write_bytes(b"")
    refused = CliRunner().invoke(app, ["verify", str(saved), "--key", f"{mine}.pub"])
    assert isinstance(refused.exception, OctuneError)


def test_without_the_library_it_says_what_to_install(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingDependency, match=r"octune\[sign\]"):
        sign(saved, Path("me.pem"))
