"""Traces of requests to the engine, by OpenTelemetry. Imported only if they are on (`nightshift.driver.tracing`).

A request has one span, from when it is sent until its reply. It belongs to the trace of what asked for it: Airflow's task, or a
message. A small share is sampled, each request by itself, because a run has one trace and as many requests as it has rows. The
engine is told by ``traceparent``, and adds its own spans to those that are sampled. A dead letter always has the span of its
last request: each is noted, and what becomes of its rows decides whether it is sent (docs/operate/metrics.md#traces).

OpenTelemetry's tracer is not used: it decides at a span's begin whether it is recorded, and a span that is recorded and thrown
away costs a request as much as all the rest of the driver. Notes are cheap, and a span is made of one when it is sent.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nightshift import __version__
from nightshift.driver.engine import Replied, SendResult
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.scheduler import Group
from nightshift.run.chunks import Result

FLUSH_MS: Final = 500
LINKS_MOST: Final = 32

_TEXT: Final = TraceContextTextMapPropagator()
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SCOPE: Final = InstrumentationScope("nightshift", __version__)


@dataclass(slots=True)
class _Note:
    """What a span is made of. began, ended: ns. path: of the request; empty if there was none."""

    trace: int
    span: int
    sampled: bool
    parents: Sequence[SpanContext]
    chunk: int
    ordinals: Sequence[int]
    path: str = ""
    tries: int = 0
    began: int = field(default_factory=time.time_ns)
    ended: int = 0
    outcome: SendResult | None = None


class RequestTraces:
    """`nightshift.driver.sender.RequestObserver` of one process. attributes: of each span. ratio: the share that is sampled, of
    what its parent samples.

    parents: the contexts, as ``traceparent``, of what asked for its work.

    parents_of(chunk, ordinals): of what asked for these rows, if each has its own: the first is the parent, others are linked.
    """

    def __init__(
        self,
        service: str,
        attributes: Mapping[str, str],
        *,
        ratio: float,
        parents: Sequence[str] = (),
        exporter: SpanExporter | None = None,
        rng: random.Random | None = None,
    ) -> None:
        name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
        self._resource = Resource.create({**name, "service.version": __version__})
        self._exporting = BatchSpanProcessor(exporter or OTLPSpanExporter())
        self._attributes = dict(attributes)
        self._ratio = ratio
        self._rng = rng or random.Random()
        self.parents_of: Callable[[int, Sequence[int]], Sequence[str]] = lambda *_: parents
        self._sent: dict[Group, _Note] = {}
        """Requests of which it is not known yet what becomes of their rows."""
        self._dead: dict[tuple[int, int], Result] = {}

    def sent(self, group: Group, path: str) -> dict[str, str]:
        """The group's request is sent; returns the headers that tell the engine."""
        self.settled(group)
        note = self._note(group.chunk, [row.ordinal for row in group.rows])
        note.path, note.tries = path, group.rows[0].tries
        self._sent[group] = note
        return {"traceparent": f"00-{note.trace:032x}-{note.span:016x}-{note.sampled:02x}"}

    def replied(self, group: Group, outcome: SendResult) -> None:
        note = self._sent[group]
        note.ended, note.outcome = time.time_ns(), outcome

    def judged(self, chunk: OpenChunk, result: Result) -> None:
        """A row has its result. A dead letter that was never part of a request has a span of its own."""
        if result.reason is None:
            return
        if result.attempts:
            self._dead[chunk.number, result.ordinal] = result
        else:
            self._export(self._note(chunk.number, [result.ordinal]), [result])

    def settled(self, group: Group) -> None:
        note, dead = self._sent.pop(group, None), []
        if self._dead:
            found = [self._dead.pop((row.chunk, row.ordinal), None) for row in group.rows]
            dead = [each for each in found if each]
        if note is None and dead:
            # No request could be made of it.
            note = self._note(group.chunk, [each.ordinal for each in dead])
        if note is not None and (note.sampled or dead):
            self._export(note, dead)

    def flush(self) -> None:
        """Sends what is left, `FLUSH_MS` at most."""
        self._exporting.force_flush(FLUSH_MS)

    def _note(self, chunk: int, ordinals: Sequence[int]) -> _Note:
        found = map(_context, self.parents_of(chunk, ordinals[: LINKS_MOST + 1]))
        parents = [each for each in found if each]
        trace = parents[0].trace_id if parents else self._rng.getrandbits(128) or 1
        sampled = (not parents or parents[0].trace_flags.sampled) and self._rng.random() < self._ratio
        return _Note(trace, self._rng.getrandbits(64) or 1, sampled, parents, chunk, ordinals)

    def _export(self, note: _Note, dead: Sequence[Result]) -> None:
        attributes: dict[str, str | int] = {
            **self._attributes,
            "nightshift.chunk": note.chunk,
            "nightshift.row": note.ordinals[0],
            "nightshift.rows": len(note.ordinals),
        }
        if note.path:
            attributes |= {"http.request.method": "POST", "url.path": note.path, "nightshift.try": note.tries}
        failed = bool(dead)
        if isinstance(note.outcome, Replied):
            attributes["http.response.status_code"] = 200
        elif note.outcome is not None:
            failed = True
            attributes["error.type"] = type(note.outcome).__name__.lower()
            if (status := getattr(note.outcome, "status", None)) is not None:
                attributes["http.response.status_code"] = status
        if dead:
            attributes |= {"nightshift.dead_letters": len(dead), "nightshift.dead_letter.reason": str(dead[0].reason)}
        span = ReadableSpan(
            name="nightshift.request" if note.path else "nightshift.row",
            context=SpanContext(note.trace, note.span, is_remote=False, trace_flags=_SAMPLED),
            parent=note.parents[0] if note.parents else None,
            resource=self._resource,
            attributes=attributes,
            links=[Link(each) for each in note.parents[1:]],
            kind=SpanKind.CLIENT if note.path else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=note.began,
            end_time=note.ended or time.time_ns(),
            instrumentation_scope=_SCOPE,
        )
        self._exporting.on_end(span)


@lru_cache(maxsize=4096)
def _context(traceparent: str) -> SpanContext | None:
    """None for a text that is no context."""
    found = get_current_span(_TEXT.extract({"traceparent": traceparent})).get_span_context()
    return found if found.is_valid else None
