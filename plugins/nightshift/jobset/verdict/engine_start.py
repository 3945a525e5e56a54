"""What an engine's start took, by its own log: the lines of vLLM 0.24 to 0.33. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_LOADED: Final = re.compile(r"(?:Model loading took .* and|Loading weights took) ([\d.]+) ?s")
_COMPILED: Final = re.compile(r"torch\.compile (?:takes|took) ([\d.]+) s in total|init engine .* \(compilation: ([\d.]+) s")
_PREPARED: Final = re.compile(r"init engine \(.*\) took ([\d.]+) s")


def engine_start(lines: Iterable[str]) -> dict[str, float]:
    """Seconds by part (`nightshift.run.observed.pod_startup.ENGINE_PARTS`); a part of which the log says nothing is missing.

    Of an engine of several processes, the slowest counts. On a CPU vLLM names no time for compiling: the warm-up has it.
    """
    kept = list(lines)
    loaded, compiled, prepared = (_slowest(pattern, kept) for pattern in (_LOADED, _COMPILED, _PREPARED))
    parts = {"weights": loaded, "compile": compiled}
    if prepared is not None:
        parts["warm_up"] = max(0.0, prepared - (compiled or 0.0))
    return {part: round(seconds, 3) for part, seconds in parts.items() if seconds is not None}


def _slowest(pattern: re.Pattern[str], lines: Iterable[str]) -> float | None:
    found = [float(each) for line in lines for match in pattern.finditer(line) for each in match.groups() if each]
    return max(found, default=None)
