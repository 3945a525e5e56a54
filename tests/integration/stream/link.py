"""The way to a server, which a test can cut: before a request arrives, or after it had its effect and before its reply."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from typing import Final

PART: Final = 1 << 16


@dataclass(eq=False)
class Link:
    """Passes connections on from `port` of this machine. target: a host and port, or the path of a socket."""

    target: tuple[str, int] | str
    cuts: int = field(init=False, default=0)
    """How many connections were cut."""
    _marker: bytes | None = field(init=False, default=None)
    _after: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self, marker: bytes, *, after: bool) -> None:
        """Cuts the next connection on which a request with `marker` is sent. after: when the server has answered it."""
        self._marker, self._after = marker, after

    def close(self) -> None:
        # Without it a thread that waits in `accept` waits on.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX if isinstance(self.target, str) else socket.AF_INET)
                server.connect(self.target)
                pair = _Pair(self, client, server)
                threading.Thread(target=pair.send, daemon=True).start()
                threading.Thread(target=pair.receive, daemon=True).start()

    def _meets(self, data: bytes) -> bool:
        """Whether this request is the one to cut. Only one is."""
        if self._marker is None or self._marker not in data:
            return False
        self._marker = None
        self.cuts += 1
        return True


@dataclass(eq=False)
class _Pair:
    link: Link
    client: socket.socket
    server: socket.socket
    swallow: bool = False
    """The next reply is not passed on."""

    def send(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.client.recv(PART):
                if self.link._meets(data):
                    if not self.link._after:
                        break
                    self.swallow = True
                self.server.sendall(data)
        self._close()

    def receive(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.server.recv(PART):
                if self.swallow:
                    break
                self.client.sendall(data)
        self._close()

    def _close(self) -> None:
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
