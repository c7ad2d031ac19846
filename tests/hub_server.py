"""A hub of models and data sets on this machine: as much of the hub's interface as its libraries ask for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LONGEST_STALL = 60.0
"""Seconds after which a held answer is given up."""


@dataclass
class Repository:
    """Files of one model or data set at its commits."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gate: str | None = None
    """The token that it takes to read it; None: anybody may."""

    def commit(self, files: dict[str, bytes]) -> str:
        """Add a commit of these files; returns its 40 hex digits."""
        name = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[name] = files
        return name


@dataclass
class Hub:
    """What the server holds and what it was asked."""

    models: dict[str, Repository] = field(default_factory=dict)
    datasets: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """`METHOD path` of every request."""
    address: str = ""
    stall: str | None = None
    """A file's name: half of its content is sent, then nothing until `released`."""
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def downloads(self) -> list[str]:
        """Files whose content was asked for."""
        return [request for request in self.requests if request.startswith("GET") and "/resolve/" in request]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Answer requests on a free port of 127.0.0.1 until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = LONGEST_STALL

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            hub.requests.append(f"{self.command} {url.path}")
            words = unquote(url.path).strip("/").split("/")
            api = words[0] == "api"
            words = words[1:] if api else words
            kinds = {"models": hub.models, "datasets": hub.datasets}
            kind = words.pop(0) if words[0] in kinds else "models"
            name, rest = "/".join(words[:2]), words[2:]
            repository = kinds[kind].get(name)
            if repository is None:
                return self._refuse(404, "RepoNotFound")
            if repository.gate and self.headers.get("Authorization") != f"Bearer {repository.gate}":
                return self._refuse(401, "GatedRepo")
            what, revision = rest[0], rest[1]
            files = repository.commits.get(revision)
            if files is None:
                return self._refuse(404, "RevisionNotFound")
            path = "/".join(rest[2:])
            if what == "resolve":
                return self._file(revision, path, files)
            if what == "revision":
                siblings = [{"rfilename": each} for each in files]
                return self._json({"id": name, "sha": revision, "siblings": siblings, "tags": []})
            if what == "paths-info":
                asked = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode())["paths"]
                return self._json([_entry(each, files[each]) for each in asked if each in files])
            return self._json(_tree(files, path, "recursive=true" in url.query.lower()))

        def _file(self, commit: str, path: str, files: dict[str, bytes]) -> None:
            if path not in files:
                self._refuse(404, "EntryNotFound", commit)
                return
            content, first = files[path], 0
            asked = self.headers.get("Range", "")
            if asked.startswith("bytes="):
                first = int(asked.removeprefix("bytes=").split("-")[0])
            self.send_response(206 if asked else 200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{_blob(content)}"')
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(content) - first))
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            if self.command != "GET":
                return
            if path == hub.stall:
                half = (first + len(content)) // 2
                self.wfile.write(content[first:half])
                self.wfile.flush()
                hub.stalled.set()
                hub.released.wait(LONGEST_STALL)
                self.close_connection = True
                return
            self.wfile.write(content[first:])

        def _json(self, data: object) -> None:
            content = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _refuse(self, status: int, code: str, commit: str | None = None) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", f"the hub says {code}")
            if commit is not None:
                self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


def _blob(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _entry(path: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(content), "oid": _blob(content)}


def _tree(files: dict[str, bytes], folder: str, recursive: bool) -> list[dict[str, object]]:
    inside = f"{folder}/" if folder else ""
    found: dict[str, dict[str, object]] = {}
    for path, content in files.items():
        if not path.startswith(inside):
            continue
        first, deeper, _ = path.removeprefix(inside).partition("/")
        if deeper and not recursive:
            found[inside + first] = {"type": "directory", "path": inside + first, "oid": "0" * 40, "size": 0}
        else:
            found[path] = _entry(path, content)
    return list(found.values())
