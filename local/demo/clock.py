"""The lines of a demo."""

from __future__ import annotations

import time


class Clock:
    """Prints lines with the seconds since the demo began."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)
