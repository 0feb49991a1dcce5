"""The report of a run while it goes on: a page on this machine that keeps itself up to date.

with Watch(folder, port=8733) as watch:
    print(watch.url)
    watch.until_it_ends()
"""

from __future__ import annotations

import errno
import hashlib
import html
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from octune.engine.journal import JOURNAL, RANGES
from octune.errors import OctuneError, WorkspaceError
from octune.evidence import Evidence
from octune.report.html.facts import Facts
from octune.report.html.page import content, page

__all__ = ["Watch"]

REFRESH = 10.0  # seconds after which a page is drawn anew though nothing was recorded: time went on
LOOK, GRACE = 0.5, 5.0  # seconds between looks at the journal; and for pages to fetch the end of the story


class Watch:
    """Serves the report of one workspace on 127.0.0.1, to this machine only."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._known: tuple[str, Facts | None] = ("", None)
        self._told: set[str] = set()
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OctuneError(
                    f"Port {port} is in use. Choose another with --port, or --port 0 for any free one."
                ) from error
            raise OctuneError(f"The page cannot be served on port {port}: {error}.") from error
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Watch:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True
        ).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def until_it_ends(self) -> None:
        """Returns when the run has ended, and open pages have had time to show how."""
        while not self.news()["ended"]:
            time.sleep(LOOK)
        end, until = self.news()["digest"], time.monotonic() + GRACE
        while self._told and end not in self._told and time.monotonic() < until:
            time.sleep(LOOK)

    def news(self) -> dict[str, Any]:
        """What a page asks for again and again: whether anything changed, and whether it is the end."""
        digest, facts = self._facts()
        ended = facts is not None and facts.state in ("met", "not met", "failed")
        return {"digest": digest, "ended": ended}

    def page(self, *, whole: bool) -> str:
        """The page, or only what changes in it."""
        digest, facts = self._facts()
        self._told.add(digest)
        name = self.folder.resolve().name
        waiting = f"<header><h1>Waiting for a run to begin in {html.escape(name)}.</h1></header>"
        body = waiting if facts is None else content(facts)
        return page(name, body, watch=True) if whole else body

    def _facts(self) -> tuple[str, Facts | None]:
        """The run as it is now; read again only if its files have changed, or some time has gone by."""
        with self._lock:
            state, facts = self._known
            digest = self._digest(facts)
            if digest != state:
                try:
                    facts = Facts.of(Evidence.read(self.folder, None if facts is None else facts.evidence))
                except WorkspaceError:  # no journal yet
                    facts = None
                self._known = state, facts = self._digest(facts), facts
            return state, facts

    def _digest(self, facts: Facts | None) -> str:
        seen: list[Any] = [None if facts is None else facts.state]
        for name in (JOURNAL, RANGES):
            try:
                stat = (self.folder / name).stat()
                seen.append((stat.st_size, stat.st_mtime_ns))
            except OSError:
                seen.append(None)
        if facts is None or facts.state in ("running", "stopped"):
            seen.append(int(time.time() / REFRESH))
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


def _handler(watch: Watch) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of another site that was pointed at this address is not answered.
            host = self.headers.get("Host", "").rsplit(":", 1)[0]
            if host not in ("127.0.0.1", "localhost"):
                self.send_error(403)
            elif self.path == "/":
                self._send(watch.page(whole=True), "text/html")
            elif self.path == "/content":
                self._send(watch.page(whole=False), "text/html")
            elif self.path == "/digest":
                self._send(json.dumps(watch.news()), "application/json")
            elif self.path == "/favicon.ico":
                self.send_response(204)
                self.end_headers()
            else:
                self.send_error(404)

        def _send(self, text: str, kind: str) -> None:
            body = text.encode()
            try:
                self.send_response(200)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):  # the page was closed
                pass

        def log_message(self, format: str, *arguments: Any) -> None:
            """Requests are not worth a line on the terminal."""

    return Handler
