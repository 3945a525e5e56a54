"""What a container said before it exited: its last lines, and the one that says why. Pure.

An engine's text is all that tells a wrong model from too little memory: its exit code is 1 for nearly everything. It is read
for people, and for one decision: whether the cause may pass by itself (`may_pass`), which only delays the end of a night.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Final

from nightshift.run.observed.pods_now import CHARACTERS_MOST, LINES_MOST, clipped

_LOGGED: Final = re.compile(r"^\s*(?:\([^)]*\)\s*)?(?:(?:ERROR|CRITICAL)\s+\S+\s+\S+\s+(?:\[[^\]]*\]\s*)?)?")
"""What vLLM puts before a line: the process, the level, the time, the file."""
_ERROR: Final = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Unavailable|NotFound)\b:?.*")
_HINTS: Final = ("rror", "Exc", "Exit", "Interrupt", "Unavailable", "NotFound")
"""One of them is in each line that the next two patterns find; most lines have none."""
_USAGE: Final = re.compile(r"[\w.\-/ ]+: error: .*")
"""As argparse ends a program."""
_ABOVE: Final = re.compile(r"see root cause above|engine core initialization failed|see stack trace above", re.IGNORECASE)
"""vLLM's API server on the end of its engine, which has already said why."""
_SEVERAL: Final = re.compile(r"validation errors? for \w+")
"""pydantic: the lines after it say what is wrong."""

_PASSES: Final = re.compile(
    r"connection (?:refused|reset|aborted|error)|connecterror|connecttimeout|readtimeout|timed out|max retries exceeded"
    r"|name or service not known|temporary failure in name resolution|network is unreachable|no route to host"
    r"|couldn't connect to|cannot reach|remotedisconnected|incompleteread"
    r"|\b(?:429|500|502|503|504) (?:client|server) error|too many requests|service unavailable|gateway time-?out",
    re.IGNORECASE,
)
"""A server that does not answer now."""
_OFFLINE: Final = re.compile(r"outgoing traffic has been disabled|offline mode|HF_HUB_OFFLINE", re.IGNORECASE)
"""The Hub's client is told not to ask anybody: waiting does not help."""


class Words:
    """The end of one life of a container, line by line, in bounded memory."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._last: deque[str] = deque(maxlen=LINES_MOST)
        self._cause = ""
        self._more = 0
        self._passes = self._offline = False
        for line in lines:
            self.add(line)

    def add(self, line: str) -> None:
        text = _LOGGED.sub("", line[:CHARACTERS_MOST]).strip()
        if not text:
            return
        self._last.append(line)
        self._passes = self._passes or bool(_PASSES.search(text))
        self._offline = self._offline or bool(_OFFLINE.search(text))
        if self._more:
            self._more -= 1
            self._cause = f"{self._cause} {text}"[:CHARACTERS_MOST]
        elif (
            any(hint in text for hint in _HINTS)
            and (_ERROR.fullmatch(text) or _USAGE.fullmatch(text))
            and not _ABOVE.search(text)
        ):
            self._cause = text[:CHARACTERS_MOST]
            self._more = 2 if _SEVERAL.search(text) else 0

    @property
    def lines(self) -> tuple[str, ...]:
        """The last ones, clipped."""
        return clipped(self._last)

    @property
    def cause(self) -> str:
        """The last error that does not refer to an earlier one; '' if there is none."""
        return self._cause

    @property
    def may_pass(self) -> bool:
        """Whether a server did not answer: then another start may succeed."""
        return self._passes and not self._offline
