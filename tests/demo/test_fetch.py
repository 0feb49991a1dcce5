"""Fetching against a small server that behaves badly on request."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from octune.demo import fetch
from octune.demo.fetch import extract_member, fetch_wheel
from octune.errors import DownloadError

FILENAME = "tiny_demo-1.0-py3-none-any.whl"


@dataclass
class Index:
    """What the server offers, how it misbehaves, and what it was asked for."""

    payload: bytes
    port: int = 0
    hash_on_page: str = ""
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    delay: float = 0.0
    pages: int = 0
    asked: list[str] = field(default_factory=list)
    sent: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.payload).hexdigest()


class Handler(BaseHTTPRequestHandler):
    index: Index

    def do_GET(self) -> None:
        index = self.index
        if index.failures:
            self.send_error(index.failures.pop(0))
        elif self.path == "/simple/tiny-demo/":
            index.pages += 1
            fragment = f"#sha256={index.hash_on_page}" if index.hash_on_page else ""
            page = f'<html><a href="x.whl">x.whl</a><a href="../../files/{FILENAME}{fragment}">it</a></html>'
            self.answer(200, page.encode(), "text/html")
        elif self.path == f"/files/{FILENAME}":
            self.file()
        else:
            self.send_error(404)

    def file(self) -> None:
        index = self.index
        asked = self.headers.get("Range", "")
        index.asked.append(asked)
        time.sleep(index.delay)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and index.ranges else 0
        if start >= len(index.payload):
            self.send_error(416)
            return
        cut = index.cuts.pop(0) if index.cuts else None
        self.answer(206 if asked and index.ranges else 200, index.payload[start:], "application/octet-stream", start, cut)

    def answer(self, status: int, body: bytes, kind: str, start: int = 0, cut: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{start + len(body)}")
        self.end_headers()
        self.wfile.write(body[:cut])
        if kind != "text/html":
            self.index.sent += len(body[:cut])

    def log_message(self, *args: object) -> None:
        pass


def make_wheel(path: Path) -> bytes:
    """A wheel that pip takes for one, of about 3 MB that do not compress."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_demo/data.bin", np.random.default_rng(0).bytes(3_000_000))
        archive.writestr("tiny_demo/hello.txt", "hello")
        archive.writestr("tiny_demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-demo\nVersion: 1.0\n")
        archive.writestr("tiny_demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny_demo-1.0.dist-info/RECORD", "")
    return path.read_bytes()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheels") / FILENAME
    make_wheel(path)
    return path


@pytest.fixture
def clean_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip as if this machine had no settings for it."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "BACKOFF", 0.01)


@pytest.fixture
def index(wheel: Path, clean_pip: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A running index which pip is set to."""
    offer = Index(wheel.read_bytes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"index": offer}))
    offer.port = server.server_address[1]
    offer.hash_on_page = offer.sha256
    monkeypatch.setenv("PIP_INDEX_URL", offer.url)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield offer
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without pip: saves the time of starting it, and shows that the first way needs none."""
    monkeypatch.setattr(fetch, "_pip", lambda *arguments: None)


def get(index: Index, cache: Path, sha256: str | None = None) -> Path:
    return fetch_wheel("tiny_demo", "1.0", FILENAME, sha256 or index.sha256, cache=cache)


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_downloads_once_with_the_settings_of_pip(index: Index, tmp_path: Path) -> None:
    path = get(index, tmp_path / "new" / "cache")
    assert path.read_bytes() == index.payload
    assert left(path.parent) == [FILENAME]
    assert get(index, path.parent) == path
    assert (index.pages, index.asked) == (1, [""])


def test_goes_on_after_a_cut_connection(index: Index, no_pip: None, tmp_path: Path) -> None:
    index.cuts = [1_000_000, 700_000]
    assert get(index, tmp_path).read_bytes() == index.payload
    first, second, third = index.asked
    assert first == ""
    assert [second, third] == ["bytes=1000000-", "bytes=1700000-"]
    assert index.sent == len(index.payload)


def test_goes_on_where_a_killed_process_stopped(index: Index, no_pip: None, tmp_path: Path) -> None:
    (tmp_path / f"{FILENAME}.part").write_bytes(index.payload[:1_234_567])
    assert get(index, tmp_path).read_bytes() == index.payload
    assert index.asked == ["bytes=1234567-"]
    assert left(tmp_path) == [FILENAME]


def test_uses_a_complete_piece_as_it_is(index: Index, no_pip: None, tmp_path: Path) -> None:
    (tmp_path / f"{FILENAME}.part").write_bytes(index.payload)
    assert get(index, tmp_path).read_bytes() == index.payload
    assert index.asked == []


def test_starts_anew_when_the_piece_is_of_another_file(index: Index, no_pip: None, tmp_path: Path) -> None:
    (tmp_path / f"{FILENAME}.part").write_bytes(b"x" * 1000)
    assert get(index, tmp_path).read_bytes() == index.payload
    assert index.asked == ["bytes=1000-", ""]


def test_starts_anew_when_the_piece_is_longer_than_the_file(index: Index, no_pip: None, tmp_path: Path) -> None:
    (tmp_path / f"{FILENAME}.part").write_bytes(index.payload + b"x")
    assert get(index, tmp_path).read_bytes() == index.payload
    assert index.asked == [f"bytes={len(index.payload) + 1}-", ""]


def test_starts_anew_when_the_server_knows_no_ranges(index: Index, no_pip: None, tmp_path: Path) -> None:
    index.ranges = False
    (tmp_path / f"{FILENAME}.part").write_bytes(index.payload[:1000])
    assert get(index, tmp_path).read_bytes() == index.payload


def test_gives_up_after_three_retries_that_bring_nothing_and_keeps_the_piece(index: Index, no_pip: None, tmp_path: Path) -> None:
    index.cuts = [2_000_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"ended after 2,000,000 of"):
        get(index, tmp_path)
    # The first try was worth it, so that only the tries after it count: itself, then three retries.
    assert len(index.asked) == 4
    assert (tmp_path / f"{FILENAME}.part").stat().st_size == 2_000_000


@pytest.mark.parametrize(("status", "requests"), [(503, 4), (429, 4), (404, 1), (403, 1)])
def test_retries_only_what_may_pass(index: Index, no_pip: None, tmp_path: Path, status: int, requests: int) -> None:
    index.failures = [status] * 10
    with pytest.raises(DownloadError, match=f"HTTP {status}"):
        get(index, tmp_path)
    assert 10 - len(index.failures) == requests


def test_a_passing_failure_is_survived(index: Index, no_pip: None, tmp_path: Path) -> None:
    index.failures = [503, 503]
    assert get(index, tmp_path).read_bytes() == index.payload


def test_refuses_another_hash_and_removes_the_file(index: Index, tmp_path: Path) -> None:
    index.hash_on_page = ""
    wrong = "0" * 64
    with pytest.raises(DownloadError) as caught:
        get(index, tmp_path, wrong)
    assert left(tmp_path) == []
    assert "index 1 of 1: sent a file with another hash" in str(caught.value)
    assert "pip download: brought a file with another hash" in str(caught.value)


def test_does_not_download_what_the_index_says_has_another_hash(index: Index, no_pip: None, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="does not list the file with this hash"):
        get(index, tmp_path, "0" * 64)
    assert index.asked == []


def test_replaces_a_wrong_file_in_the_cache(index: Index, no_pip: None, tmp_path: Path) -> None:
    (tmp_path / FILENAME).write_bytes(b"not it")
    assert get(index, tmp_path).read_bytes() == index.payload


def test_lets_pip_try_what_the_indexes_do_not_have(index: Index, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.failures = [404] * 20
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert get(index, tmp_path).read_bytes() == index.payload
    assert left(tmp_path) == [FILENAME]


def test_reads_an_index_in_a_folder(wheel: Path, clean_pip: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "simple" / "tiny-demo" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{wheel.as_uri()}">{FILENAME}</a>')
    settings = {"index-url": "http://127.0.0.1:9/simple", "extra-index-url": (tmp_path / "simple").as_uri()}
    monkeypatch.setattr(fetch, "_pip_settings", lambda: settings)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert fetch_wheel("tiny-demo", "1.0", FILENAME, sha256, cache=tmp_path / "cache").read_bytes() == wheel.read_bytes()


def test_reads_the_settings_of_pip(clean_pip: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://a.example/simple\nextra-index-url =\n    https://b.example\n    https://c.example\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert fetch._indexes(fetch._pip_settings()) == ["https://a.example/simple", "https://b.example", "https://c.example"]
    monkeypatch.setenv("PIP_INDEX_URL", "https://d.example/simple")
    assert fetch._indexes(fetch._pip_settings())[0] == "https://d.example/simple"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert fetch._indexes(fetch._pip_settings()) == []


def test_offline_says_what_was_tried_and_what_to_do(clean_pip: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv("PIP_INDEX_URL", f"http://{address}/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"http://user:secret@{address}/simple")
    monkeypatch.setattr(fetch, "RETRIES", 1)
    monkeypatch.setenv("OCTUNE_CACHE", str(tmp_path))
    with pytest.raises(DownloadError) as caught:
        fetch_wheel("tiny-demo", "1.0", FILENAME, "ab" * 32)
    message = str(caught.value)
    for part in (FILENAME, "tiny-demo 1.0", "ab" * 32, str(tmp_path), "OCTUNE_CACHE"):
        assert part in message
    for attempt in ("index 1 of 2: ", "refused", "index 2 of 2: needs a login", "pip download: "):
        assert attempt in message
    assert address not in message
    assert "secret" not in message


def test_a_cache_that_cannot_be_used(clean_pip: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="OCTUNE_CACHE"):
        fetch_wheel("tiny-demo", "1.0", FILENAME, "ab" * 32, cache=tmp_path / "file")


def test_two_processes_download_once(index: Index, tmp_path: Path) -> None:
    index.delay = 1.0
    code = "import sys; from octune.demo.fetch import fetch_wheel; fetch_wheel(*sys.argv[1:])"
    command = [sys.executable, "-c", code, "tiny-demo", "1.0", FILENAME, index.sha256]
    environment = {**os.environ, "OCTUNE_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert index.asked == [""]
    assert (tmp_path / FILENAME).read_bytes() == index.payload


def test_extract_writes_the_file(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "down" / "hello.txt"
    assert extract_member(wheel, "tiny_demo/hello.txt", target) == target
    assert target.read_text() == "hello"
    assert [path.name for path in target.parent.iterdir()] == ["hello.txt"]


@pytest.mark.parametrize("member", ["../evil", "a/../../evil", "/etc/passwd", "a\\..\\evil", "folder/", ""])
def test_extract_refuses_to_leave_the_folder(tmp_path: Path, member: str) -> None:
    bad = tmp_path / "bad.whl"
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr(member or "x", "evil")
    with pytest.raises(DownloadError, match=r"relative path"):
        extract_member(bad, member, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_extract_names_what_is_not_there(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"no file 'tiny_demo/other.txt'"):
        extract_member(wheel, "tiny_demo/other.txt", tmp_path / "other.txt")


def test_extract_leaves_the_old_file_when_the_wheel_is_damaged(wheel: Path, tmp_path: Path) -> None:
    content = bytearray(wheel.read_bytes())
    content[1_000_000] ^= 0xFF
    damaged = tmp_path / FILENAME
    damaged.write_bytes(content)
    target = tmp_path / "out" / "data.bin"
    target.parent.mkdir()
    target.write_text("old")
    with pytest.raises(DownloadError, match="damaged"):
        extract_member(damaged, "tiny_demo/data.bin", target)
    assert target.read_text() == "old"
    assert [path.name for path in target.parent.iterdir()] == ["data.bin"]
