"""The heads of requests to one host: first line and headers, up to the value of Content-Length."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

KEPT: Final = 64

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_PATH: Final = re.compile(r"/[\x21-\x22\x24-\x7e]*")
_FRAMING: Final = ("connection", "content-length", "host", "transfer-encoding")
_LENGTH: Final = b"Content-Length: "


class Heads:
    """authority: the host, with its port. prefix: put before every path. headers: of every request. Raises ValueError."""

    def __init__(self, authority: str, prefix: str, headers: Mapping[str, str]) -> None:
        if not _PATH.fullmatch(f"{prefix}/"):
            raise ValueError(
                "the engine's URL must not contain spaces or characters outside ASCII; percent-encode them, for example %20"
            )
        self._prefix = prefix
        self._fixed = _lines({"Host": authority, "Accept": "*/*", "Accept-Encoding": "identity"})
        self._fixed += _lines(headers, framing=False)
        self._kept: dict[tuple[str, str], bytes] = {}

    def of(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> bytes:
        """Raises ValueError for what cannot be sent."""
        head = self._kept.get((method, path))
        if head is None:
            if not _TOKEN.fullmatch(method) or not _PATH.fullmatch(path):
                raise ValueError(f"{method!r} {path!r} cannot be sent")
            head = f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode("ascii") + self._fixed + _LENGTH
            if len(self._kept) >= KEPT:
                self._kept.clear()
            self._kept[method, path] = head
        return head.removesuffix(_LENGTH) + _lines(headers, framing=False) + _LENGTH if headers else head


def _lines(headers: Mapping[str, str], *, framing: bool = True) -> bytes:
    """Raises ValueError for what would break the request's framing; framing: whether Host and the like are allowed."""
    lines = []
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} contains a character that is not allowed in headers")
        if not framing and name.lower() in _FRAMING:
            raise ValueError(f"the header {name!r} is set by the client itself")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("latin-1")
