"""The part of the Hugging Face Hub's API that nightshift calls, answered from a hub cache (`local.hub`).

As strict as the Hub: a revision's slashes must be escaped, an unknown repository and one that the token may not read both get
401 (RepoNotFound), a wrong token gets 401, an unknown revision 404 (RevisionNotFound), any other path 404. A branch or tag is a
file in ``refs``, and its commit that file's content. Runs under the system's Python with the standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote

_PATH = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/?]+)(\?blobs=true)?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/?]+)/([^?]+)")


class HubApi:
    """Serves a cache on a free port of this machine, in a thread. Use as a context manager.

    tokens: which repositories each token may read besides the public ones. private: repositories that need such a token.
    `seen` is every request's path; while `broken` holds statuses, each request gets the next one. While `cut` holds numbers,
    each file ends after so many bytes.
    """

    def __init__(
        self, cache: Path, *, tokens: Mapping[str, tuple[str, ...]] | None = None, private: tuple[str, ...] = ()
    ) -> None:
        self.cache, self.tokens, self.private = cache, tokens or {}, private
        self.seen: list[str] = []
        self.broken: list[int] = []
        self.cut: list[int] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        """The value of ``HF_ENDPOINT``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HubApi:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, authorization: str | None) -> tuple[int, str, dict[str, object] | bytes]:
        """Status, ``X-Error-Code``, and a JSON body or a file."""
        self.seen.append(path)
        if self.broken:
            return self.broken.pop(0), "", {"error": "Internal Error"}
        token = (authorization or "").removeprefix("Bearer ")
        if token and token not in self.tokens:
            return 401, "", {"error": "Invalid credentials in Authorization header"}
        found = _PATH.fullmatch(path) or _FILE.fullmatch(path)
        if found is None:
            return 404, "", {"error": "Sorry, we can't find the page you are looking for."}
        repository, revision = found[1], unquote(found[2])
        folder = self.cache / f"models--{repository.replace('/', '--')}"
        if not folder.is_dir() or (repository in self.private and repository not in self.tokens.get(token, ())):
            return 401, "RepoNotFound", {"error": "Invalid username or password."}
        commit = _commit(folder, revision)
        if commit is None:
            return 404, "RevisionNotFound", {"error": f"Invalid rev id: {revision}"}
        if found.re is _FILE:
            file = folder / "snapshots" / commit / unquote(found[3])
            return (200, "", file.read_bytes()) if file.is_file() else (404, "EntryNotFound", {"error": "Entry not found"})
        return (
            200,
            "",
            {"_id": "0", "id": repository, "sha": commit, "siblings": _files(folder / "snapshots" / commit, found[3])},
        )


def _files(snapshot: Path, blobs: str | None) -> list[dict[str, object]]:
    """With ``blobs``, each file has its size and its name in Git too, and large ones, here safetensors, their digest."""
    paths = sorted(path for path in snapshot.rglob("*") if path.is_file())
    named: list[dict[str, object]] = [{"rfilename": str(path.relative_to(snapshot))} for path in paths]
    if not blobs:
        return named
    for each, path in zip(named, paths, strict=True):
        each["size"] = path.stat().st_size
        each["blobId"] = hashlib.sha1(b"blob %d\0" % path.stat().st_size + path.read_bytes()).hexdigest()
        if path.suffix == ".safetensors":
            each["lfs"] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size": each["size"]}
    return named


def _commit(folder: Path, revision: str) -> str | None:
    if (folder / "snapshots" / revision).is_dir():
        return revision
    reference = folder / "refs" / revision
    return reference.read_text() if reference.is_file() else None


def _handler(hub: HubApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, code, body = hub.answer(self.path, self.headers.get("Authorization"))
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            if code:
                self.send_header("X-Error-Code", code)
            self.end_headers()
            self.wfile.write(content[: hub.cut.pop(0)] if hub.cut and isinstance(body, bytes) else content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Says nothing."""

    return Handler
