"""The spans of requests: which are sent, what they say, whose children they are."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from nightshift.driver.engine import Failed, Gone, Replied, SendResult
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.scheduler import Group, Row
from nightshift.driver.traces import RequestTraces
from nightshift.driver.tracing import RATIO, CannotTrace, ratio_of, traces_of
from nightshift.run.chunks import Result
from nightshift.tasks.base import Reason
from tests.simulation.virtual import VirtualLoop
from tests.unit.stream_bench import Bench, Kind, refuses_bad, run

pytestmark = pytest.mark.unit

TRACE, TASK = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{TASK}-01", f"00-{TRACE}-{TASK}-00"


ANSWERED = Replied({})


class Traced:
    """Requests of one chunk, and the spans that a collector gets of them."""

    def __init__(self, ratio: float, *parents: str) -> None:
        self.exporter = InMemorySpanExporter()
        self.traces = RequestTraces(
            "nightshift-driver",
            {"nightshift.job": "j"},
            ratio=ratio,
            parents=parents,
            exporter=self.exporter,
            rng=random.Random(7),
        )
        self.chunk = OpenChunk(3, 0, 100)

    def group(self, *ordinals: int) -> Group:
        return Group([Row(3, ordinal, None, tries=1) for ordinal in ordinals])

    def request(
        self, *ordinals: int, outcome: SendResult = ANSWERED, dead: Mapping[int, Reason] | None = None
    ) -> dict[str, str]:
        """One from its beginning to its end; returns its headers."""
        group = self.group(*ordinals)
        headers = self.traces.sent(group, "/v1/embeddings")
        self.traces.replied(group, outcome)
        for ordinal in ordinals:
            reason = (dead or {}).get(ordinal)
            self.traces.judged(self.chunk, Result(ordinal, None, reason and str(reason), None, 1))
        self.traces.settled(group)
        return headers

    @property
    def spans(self) -> list[ReadableSpan]:
        self.traces.flush()
        return list(self.exporter.get_finished_spans())


def ids(span: ReadableSpan) -> tuple[str, str, str | None]:
    """Trace, span and parent in hexadecimal."""
    context = span.context
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", span.parent and f"{span.parent.span_id:016x}"


def test_a_sampled_request_continues_the_trace_of_airflows_task() -> None:
    traced = Traced(1.0, SAMPLED)
    headers = traced.request(4, 5)
    (span,) = traced.spans

    trace, own, parent = ids(span)
    assert (trace, parent) == (TRACE, TASK)
    assert headers == {"traceparent": f"00-{TRACE}-{own}-01"}, "the engine's spans become its children"
    assert span.attributes == {
        "nightshift.job": "j",
        "nightshift.chunk": 3,
        "nightshift.row": 4,
        "nightshift.rows": 2,
        "nightshift.try": 1,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/v1/embeddings",
    }
    assert (span.name, span.kind.name, span.status.status_code.name) == ("nightshift.request", "CLIENT", "UNSET")
    assert span.resource.attributes["service.name"] == "nightshift-driver"


def test_about_the_share_of_requests_is_sampled_although_they_are_of_one_trace() -> None:
    traced = Traced(0.1, SAMPLED)
    told = [traced.request(number)["traceparent"][-2:] for number in range(1000)]

    assert 60 < len(traced.spans) < 140
    assert told.count("01") == len(traced.spans), "the engine traces the same ones"


@pytest.mark.parametrize("parent", [UNSAMPLED, SAMPLED])
def test_a_dead_letter_always_has_its_span(parent: str) -> None:
    traced = Traced(0.0, parent)
    traced.request(1)
    traced.request(2, 3, 4, dead={3: Reason.TIMEOUT}, outcome=Failed("too late", Reason.TIMEOUT, 504))
    (span,) = traced.spans

    attributes = span.attributes or {}
    assert ids(span)[0::2] == (TRACE, TASK)
    assert span.context is not None
    assert span.context.trace_flags.sampled, "a collector throws it away otherwise"
    assert (attributes["nightshift.dead_letter.reason"], attributes["nightshift.dead_letters"]) == ("timeout", 1)
    assert (attributes["http.response.status_code"], attributes["error.type"]) == (504, "failed")
    assert span.status.status_code.name == "ERROR"
    assert not any("too late" in str(value) for value in attributes.values()), "an engine's message may have the row in it"


def test_of_several_tries_the_last_one_is_kept() -> None:
    traced = Traced(0.0)
    group = traced.group(1)
    for number in (1, 2, 3):
        group.rows[0].tries = number
        traced.traces.sent(group, "/v1/embeddings")
        traced.traces.replied(group, Gone("it broke"))
    traced.traces.judged(traced.chunk, Result(1, None, "engine_error", None, 3))
    traced.traces.settled(group)

    (span,) = traced.spans
    assert (span.attributes or {})["nightshift.try"] == 3


@pytest.mark.parametrize("tries", [0, 1])
def test_a_row_of_which_no_request_was_made_has_one_too(tries: int) -> None:
    """0: it could not be rendered; 1: its image could not be read."""
    traced = Traced(0.0, SAMPLED)
    group = traced.group(1)
    traced.traces.judged(traced.chunk, Result(1, None, "bad_input", None, tries))
    traced.traces.settled(group)

    (span,) = traced.spans
    assert (span.name, ids(span)[0::2]) == ("nightshift.row", (TRACE, TASK))
    assert (span.attributes or {})["nightshift.dead_letter.reason"] == "bad_input"


def test_a_request_that_was_called_back_leaves_nothing_behind() -> None:
    traced = Traced(1.0)
    group = traced.group(1)
    traced.traces.sent(group, "/v1/embeddings")
    traced.traces.settled(group)
    traced.traces.settled(group)

    assert len(traced.spans) == 1
    assert (traced.traces._sent, traced.traces._dead) == ({}, {})


def test_without_a_parent_each_request_is_a_trace_of_its_own() -> None:
    traced = Traced(1.0)
    traced.request(1)
    traced.request(2)

    assert len({ids(span)[0] for span in traced.spans}) == 2
    assert {ids(span)[2] for span in traced.spans} == {None}


def test_rows_with_parents_of_their_own_are_linked_to_the_first() -> None:
    """Messages that share a request."""
    traced = Traced(1.0)
    others = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2, 3)]

    def parents_of(chunk: int, ordinals: Sequence[int]) -> list[str]:
        assert chunk == 3
        return [others[ordinal] for ordinal in ordinals]

    traced.traces.parents_of = parents_of
    traced.request(1, 0, 2)
    (span,) = traced.spans

    assert ids(span)[0::2] == (f"{2:032x}", f"{2:016x}")
    assert [f"{link.context.span_id:016x}" for link in span.links] == [f"{1:016x}", f"{3:016x}"]


@pytest.mark.parametrize("parent", ["", "nonsense", "00-0-0-01", "ff" * 200])
def test_a_parent_that_is_none_is_passed_over(parent: str) -> None:
    traced = Traced(1.0, parent)
    traced.request(1)

    assert ids(traced.spans[0])[2] is None


ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {ENDPOINT: ""},
        {ENDPOINT: "http://c:4318/v1/traces", "OTEL_SDK_DISABLED": "true"},
        {ENDPOINT: "http://c:4318/v1/traces", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_they_are_off_unless_they_are_on(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert traces_of("nightshift-driver", {}) is None


@pytest.mark.parametrize(("text", "ratio"), [("", RATIO), ("0", 0.0), ("1", 1.0), ("0.25", 0.25), ("1e-3", 0.001)])
def test_the_share_is_opentelemetrys_variable(text: str, ratio: float) -> None:
    assert ratio_of(text) == ratio


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "half"])
def test_a_share_that_is_none_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(CannotTrace, match="OTEL_TRACES_SAMPLER_ARG"):
        ratio_of(text)


@pytest.mark.parametrize("attribute", ["googclient_traceparent", "traceparent"])
def test_a_streams_request_continues_the_traces_of_its_messages(attribute: str) -> None:
    """From the attribute that a publisher sets, over the request, to the engine's header; a dead letter has one in any case."""
    exporter = InMemorySpanExporter()
    traces = RequestTraces("nightshift-stream", {}, ratio=1.0, exporter=exporter)

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, traces=traces, reply=refuses_bad, kind=Kind(2))
        for number, text in enumerate(("a", "b", "bad"), start=1):
            flag = "00" if text == "bad" else "01"
            bench.deliver(text, attributes={attribute: f"00-{number:032x}-{number:016x}-{flag}"})
        bench.start()
        await bench.until(lambda: len(bench.source.acknowledged) == 3)

        told = [str(each)[len("{'traceparent': '00-") :][:32] for each in bench.engine.headers]
        assert told == [f"{1:032x}", f"{3:032x}"]
        await bench.end()

    run(main)
    traces.flush()
    first, dead = exporter.get_finished_spans()

    assert ids(first)[0::2] == (f"{1:032x}", f"{1:016x}")
    assert [f"{link.context.trace_id:032x}" for link in first.links] == [f"{2:032x}"]
    assert (ids(dead)[0], (dead.attributes or {})["nightshift.dead_letter.reason"]) == (f"{3:032x}", "rejected")
    assert (traces._sent, traces._dead) == ({}, {})
