"""Traces of requests to the engine, by OpenTelemetry. Imported only if they are on (`nightshift.driver.tracing`).

A request has one span, from when it is sent until its reply. It belongs to the trace of what asked for it: Airflow's task, or a
message. A small share is sampled, each request by itself, because a run has one trace and as many requests as it has rows. The
engine is told by ``traceparent``, and adds its own spans to those that are sampled. A dead letter always has the span of its
last request: each records one, and what becomes of its rows decides whether it is sent (docs/operate/traces.md).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes

from nightshift import __version__
from nightshift.driver.engine import Replied, SendResult
from nightshift.driver.scheduler import Group, OpenChunk
from nightshift.run.chunks import Result

FLUSH_MS: Final = 500
LINKS_MOST: Final = 32

_TEXT: Final = TraceContextTextMapPropagator()


class Share(Sampler):
    """Samples this share of spans, each by itself; none under a parent that is not sampled. The others are recorded only."""

    def __init__(self, ratio: float, rng: random.Random) -> None:
        self._ratio = ratio
        self._rng = rng

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        parent = get_current_span(parent_context).get_span_context()
        sampled = (not parent.is_valid or parent.trace_flags.sampled) and self._rng.random() < self._ratio
        return SamplingResult(Decision.RECORD_AND_SAMPLE if sampled else Decision.RECORD_ONLY, attributes, parent.trace_state)

    def get_description(self) -> str:
        return f"Share({self._ratio})"


Carriers = Sequence[Mapping[str, str]]
"""Contexts as W3C trace headers."""


class RequestTraces:
    """Those of one process. attributes: of each span. parents: of what asked for its work.

    parents_of(chunk, ordinals): of what asked for these rows, if each has its own: the first is the parent, others are linked.
    """

    def __init__(
        self,
        service: str,
        attributes: Mapping[str, str],
        *,
        ratio: float,
        parents: Carriers = (),
        exporter: SpanExporter | None = None,
        rng: random.Random | None = None,
    ) -> None:
        name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
        provider = TracerProvider(
            sampler=Share(ratio, rng or random.Random()),
            resource=Resource.create({**name, "service.version": __version__}),
            shutdown_on_exit=False,
        )
        self._exporting = BatchSpanProcessor(exporter or OTLPSpanExporter())
        provider.add_span_processor(self._exporting)
        self._tracer = provider.get_tracer("nightshift", __version__)
        self._attributes = dict(attributes)
        self.parents_of: Callable[[int, Sequence[int]], Carriers] = lambda *_: parents
        self._spans: dict[Group, Span] = {}
        """Of requests of which it is not known yet what becomes of their rows."""
        self._ends: dict[Group, int] = {}
        """When the reply to these came, in ns."""
        self._dead: dict[tuple[int, int], Result] = {}

    def sent(self, group: Group, path: str) -> dict[str, str]:
        """The group's request is sent; returns the headers that tell the engine."""
        self.settled(group)
        span = self._begun("nightshift.request", group.chunk, [row.ordinal for row in group.rows], SpanKind.CLIENT)
        span.set_attributes({"http.request.method": "POST", "url.path": path, "nightshift.try": group.rows[0].tries})
        self._spans[group] = span
        headers: dict[str, str] = {}
        _TEXT.inject(headers, set_span_in_context(span))
        return headers

    def replied(self, group: Group, outcome: SendResult) -> None:
        """What became of the request, before it is known what becomes of its rows."""
        self._ends[group] = time.time_ns()
        span = self._spans[group]
        status = 200 if isinstance(outcome, Replied) else getattr(outcome, "status", None)
        if status is not None:
            span.set_attribute("http.response.status_code", status)
        if not isinstance(outcome, Replied):
            span.set_attribute("error.type", type(outcome).__name__.lower())
            span.set_status(Status(StatusCode.ERROR))

    def judged(self, chunk: OpenChunk, result: Result) -> None:
        """A row has its result. Of a dead letter the span is kept, or made if it was never part of a request."""
        if result.reason is None:
            return
        if result.attempts:
            self._dead[chunk.number, result.ordinal] = result
        else:
            self._end(self._begun("nightshift.row", chunk.number, [result.ordinal]), [result])

    def settled(self, group: Group) -> None:
        """It is known what becomes of the group's rows, or they are sent again."""
        found = [self._dead.pop((row.chunk, row.ordinal), None) for row in group.rows]
        dead = [each for each in found if each]
        span, end = self._spans.pop(group, None), self._ends.pop(group, None)
        if span is None and dead:
            # No request could be made of it.
            span = self._begun("nightshift.row", group.chunk, [each.ordinal for each in dead])
        if span is not None:
            self._end(span, dead, end)

    def flush(self) -> None:
        """Sends what is left, `FLUSH_MS` at most."""
        self._exporting.force_flush(FLUSH_MS)

    def _begun(self, name: str, chunk: int, ordinals: Sequence[int], kind: SpanKind = SpanKind.INTERNAL) -> Span:
        contexts = [_TEXT.extract(dict(each)) for each in self.parents_of(chunk, ordinals[: LINKS_MOST + 1])]
        attributes: dict[str, str | int] = {
            **self._attributes,
            "nightshift.chunk": chunk,
            "nightshift.row": ordinals[0],
            "nightshift.rows": len(ordinals),
        }
        span = self._tracer.start_span(
            name,
            # Never the current one: a span has no other parent than what is named.
            context=contexts[0] if contexts else Context(),
            kind=kind,
            attributes=attributes,
            links=list(_links(contexts[1:])),
        )
        assert isinstance(span, Span), "each is recorded"
        return span

    def _end(self, span: Span, dead: Sequence[Result], end_ns: int | None = None) -> None:
        if dead:
            span.set_attributes({"nightshift.dead_letters": len(dead), "nightshift.dead_letter.reason": str(dead[0].reason)})
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_ns)
        if dead and not span.get_span_context().trace_flags.sampled:
            self._exporting.on_end(_sampled(span))


def _links(contexts: Iterable[Context]) -> Iterable[Link]:
    for each in contexts:
        if (found := get_current_span(each).get_span_context()).is_valid:
            yield Link(found)


def _sampled(span: Span) -> ReadableSpan:
    """An ended span as if it had been sampled from the start."""
    own = span.get_span_context()
    context = SpanContext(own.trace_id, own.span_id, own.is_remote, TraceFlags(TraceFlags.SAMPLED), own.trace_state)
    return ReadableSpan(
        name=span.name,
        context=context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
