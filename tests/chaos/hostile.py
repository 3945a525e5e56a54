"""Messages that somebody who may publish could send to harm a stream, each with what must become of it and of it alone."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nightshift.stream.redriven_ids import ATTRIBUTE
from tests.integration.stream.processes import JOB

EVERY: Final = 100
"""One message in so many is hostile."""
_NOW: Final = "2026-11-20T12:30:00+00:00"


@dataclass(frozen=True)
class Hostile:
    """text: what its answer is to, if it is answered; reason: of its dead letter otherwise."""

    kind: str
    data: bytes
    attributes: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    reason: str | None = None


def hostile(rng: random.Random, number: int) -> Hostile:
    """One, at random; number: in its text, so that no two are alike."""
    text = f"hostile {number}"
    good, poison = json.dumps({"text": text}).encode(), json.dumps({"text": f"poison {text}"}).encode()
    return rng.choice([*_answered(text, good), *_unreadable(text), *_rejected(poison)])


def _answered(text: str, good: bytes) -> list[Hostile]:
    """Those that are messages like others, whatever their attributes say."""
    said = {
        "a time that overflows": "x.r1 0001-01-01T00:00:00+14:00",
        "a time in the future": "1.r1 9999-12-30T00:00:00+00:00",
        "an id with NUL": f"1\0.r1 {_NOW}",
        "an id with an escape": f"\x1b[2J.r1 {_NOW}",
        "a long id": f"{'9' * 900}.r1 {_NOW}",
        "a number without end": f"1.r{'9' * 900} {_NOW}",
    }
    lists = b'{"text": %s, "more": [%s[]]}' % (json.dumps(text).encode(), b"[]," * 100_000)
    return [
        *(Hostile(kind, good, {ATTRIBUTE: value}, text=text) for kind, value in said.items()),
        Hostile(
            "names of ours", good, {"nightshift_problem": "no", "nightshift_left_out": "all", "nightshift_jobs": "x"}, text=text
        ),
        Hostile("a hundred thousand lists", lists, text=text),
        Hostile("a field that is a template", json.dumps({"text": text, "{{ text }}": "{% for %}"}).encode(), text=text),
    ]


def _unreadable(text: str) -> list[Hostile]:
    bodies = {
        "not JSON": b"\xff\xfe" + text.encode(),
        "deep JSON": b'{"text": ' + b"[" * 100_000,
        "half a surrogate pair": b'{"text": "\\ud800"}',
        "a number beyond all": b'{"text": ' + b"9" * 5000 + b"e" + b"9" * 50 + b"}",
        "no object": b'["text"]',
        "another field": b'{"' + b"x" * 200_000 + b'": 1}',
    }
    return [
        *(Hostile(kind, data, {"n": text}, reason="bad_input") for kind, data in bodies.items()),
        Hostile("no data", b"", {"n": text}, reason="bad_input"),
    ]


def _rejected(poison: bytes) -> list[Hostile]:
    full = {f"{n:03}" + "k" * 253: "v" * 1024 for n in range(100)}
    own = {"nightshift_job": str(JOB["job"]), "nightshift_reason": "rejected"}
    return [
        Hostile("all attributes that there may be", poison, full, reason="rejected"),
        Hostile("attributes with NUL", poison, {"a": "\0", "b\0": "c"}, reason="rejected"),
        Hostile("an announcement of ours", poison, own, reason="rejected"),
    ]
