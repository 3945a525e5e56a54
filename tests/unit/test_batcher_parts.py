"""Which headers have to agree, who is admitted, and how a refused request is found. Pure."""

from __future__ import annotations

import math
import random

import pytest

from nightshift.stream.batcher.admission import COPIES, RATE_WINDOW_S, RETRY_AFTER_MOST_S, Admission, Rate
from nightshift.stream.batcher.bisection import Bisection
from nightshift.stream.batcher.headers import HeaderRules, end_to_end, of_one, sendable

pytestmark = pytest.mark.unit

JSON = (b"content-type", b"application/json")


def counting(*headers: tuple[bytes, bytes], rules: HeaderRules | None = None) -> tuple[tuple[str, str], ...] | None:
    return (rules or HeaderRules()).counting([JSON, *headers])


class TestHeadersThatCount:
    @pytest.mark.parametrize(
        "name", [b"authorization", b"x-api-key", b"api-key", b"cookie", b"x-tenant", b"x-anything", b"idempotency-key"]
    )
    def test_any_that_may_name_a_tenant(self, name: bytes) -> None:
        assert counting((name, b"one")) == ((name.decode(), "one"),)

    @pytest.mark.parametrize(
        "name",
        ["user-agent", "accept-encoding", "content-length", "host", "traceparent", "x-request-id", "x-forwarded-for", "te"],
    )
    def test_not_what_names_the_callers_software_route_or_trace(self, name: str) -> None:
        assert counting((name.encode(), b"one")) == ()

    @pytest.mark.parametrize("name", ["x-stainless-os", "sec-fetch-mode", "connection", "transfer-encoding", "x-b3-traceid"])
    def test_nor_those_of_a_family_or_a_connection(self, name: str) -> None:
        assert counting((name.encode(), b"one")) == ()

    def test_names_are_sorted_and_repeated_ones_joined(self) -> None:
        headers = ((b"x-b", b"1"), (b"x-a", b"2"), (b"x-b", b"3"), (b"cookie", b"c=1"), (b"cookie", b"d=2"))

        assert counting(*headers) == (("cookie", "c=1; d=2"), ("x-a", "2"), ("x-b", "1, 3"))

    def test_what_the_connection_header_names_concerns_the_connection(self) -> None:
        assert counting((b"connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"x-end", b"2")) == (("x-end", "2"),)

    def test_a_user_may_count_more_and_ignore_more(self) -> None:
        rules = HeaderRules(key=["X-Forwarded-For", "User-Agent"], ignored=["X-Session"])

        headers = ((b"x-forwarded-for", b"1"), (b"user-agent", b"2"), (b"x-session", b"3"))
        assert counting(*headers, rules=rules) == (("user-agent", "2"), ("x-forwarded-for", "1"))

    @pytest.mark.parametrize("name", ["Authorization", "cookie", "X-API-Key", "api-key"])
    def test_credentials_cannot_be_ignored(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"'{name.lower()}' has to count"):
            HeaderRules(ignored=[name])

    def test_a_header_cannot_be_both(self) -> None:
        with pytest.raises(ValueError, match="'x-a' has to count"):
            HeaderRules(key=["x-a"], ignored=["X-A"])

    @pytest.mark.parametrize("name", ["", "a b", "a:", "é"])
    def test_a_name_that_no_header_can_have(self, name: str) -> None:
        with pytest.raises(ValueError, match="not a valid name"):
            HeaderRules(key=[name])


class TestWhatGoesAlone:
    @pytest.mark.parametrize(
        "value", [b"application/json", b"Application/JSON; charset=utf-8", b' application/json;charset="UTF8" ']
    )
    def test_plain_json_does_not(self, value: bytes) -> None:
        assert HeaderRules().counting([(b"content-type", value)]) == ()

    @pytest.mark.parametrize("value", [b"", b"text/plain", b"application/json; charset=latin-1", b"application/octet-stream"])
    def test_another_type_does(self, value: bytes) -> None:
        assert HeaderRules().counting([(b"content-type", value)]) is None
        assert HeaderRules().counting([]) is None

    @pytest.mark.parametrize("header", [(b"content-encoding", b"gzip"), (b"inference-header-content-length", b"12")])
    def test_a_body_that_is_encoded_does(self, header: tuple[bytes, bytes]) -> None:
        assert counting(header) is None

    @pytest.mark.parametrize("value", [b"*/*", b"application/json", b"text/html, application/*;q=0.5", b"APPLICATION/JSON"])
    def test_who_takes_json_does_not(self, value: bytes) -> None:
        assert counting((b"accept", value)) == ()

    @pytest.mark.parametrize("value", [b"text/event-stream", b"application/octet-stream", b"application/json; q=0", b""])
    def test_who_takes_none_does(self, value: bytes) -> None:
        assert counting((b"accept", value)) is None


def test_a_request_alone_keeps_all_its_headers_but_those_that_the_client_writes() -> None:
    headers = [JSON, (b"Host", b"h"), (b"accept", b"*/*"), (b"x-request-id", b"7"), (b"te", b"x"), (b"user-agent", b"u")]

    assert of_one(headers) == {"x-request-id": "7", "user-agent": "u"}
    assert end_to_end([(b"X-Mixed", b"V"), (b"Keep-Alive", b"5")]) == [("x-mixed", "V")]


@pytest.mark.parametrize(
    ("value", "expected"), [(b"a\tb \xe9", True), (b"a\r\nx: y", False), (b"\x00", False), (b"\x7f", False)]
)
def test_values_that_would_be_another_header(value: bytes, expected: bool) -> None:
    assert sendable([JSON, (b"x-a", value)]) is expected


class TestAdmission:
    def test_callers_are_bounded(self) -> None:
        admission = Admission(callers_most=2, bytes_most=1000)

        assert [admission.enter(1), admission.enter(1), admission.enter(1)] == [None, None, "queue"]
        admission.leave(1, 0.0)
        assert admission.enter(1) is None

    def test_their_memory_too(self) -> None:
        admission = Admission(callers_most=99, bytes_most=COPIES * 10)

        assert [admission.enter(6), admission.enter(6)] == [None, "memory"]
        admission.shrink(6, 4)
        assert admission.enter(6) is None
        admission.leave(4, 0.0)
        admission.leave(6, 0.0)
        assert repr(admission) == f"<Admission callers=0/99 bytes=0/{COPIES * 10}>"

    def test_when_to_come_again_follows_the_rate(self) -> None:
        admission = Admission(callers_most=1000, bytes_most=1000)
        for _ in range(90):
            admission.enter(0)
        for second in range(5):
            for _ in range(4):
                admission.leave(0, float(second))

        assert admission.callers == 70
        assert admission.retry_after_s(5.0) == 18, "70 callers at 20 in 5 s"

    def test_it_is_never_less_than_a_second_nor_more_than_a_minute(self) -> None:
        admission = Admission(callers_most=10_000, bytes_most=1000)
        for _ in range(5000):
            admission.enter(0)

        assert admission.retry_after_s(0.0) == 1, "nothing is known yet"
        admission.leave(0, 0.0)
        assert admission.retry_after_s(0.0) == RETRY_AFTER_MOST_S
        for _ in range(4998):
            admission.leave(0, 1.0)
        assert admission.retry_after_s(1.0) == 1

    def test_what_was_answered_long_ago_is_forgotten(self) -> None:
        rate = Rate()
        rate.add(100, 0.0)

        assert rate.per_s(RETRY_AFTER_MOST_S) == 0.0
        rate.add(10, 70.0)
        assert rate.per_s(72.0) == 5.0
        assert rate.per_s(70.0 + RATE_WINDOW_S) == 0.0


class TestBisection:
    @staticmethod
    def sent(count: int, bad: set[int]) -> tuple[list[int], list[int], int]:
        """(answered, refused alone, requests) of a server that refuses whatever has a bad request in it."""
        plan, answered, refused, requests = Bisection(range(count)), [], [], 0
        while (part := plan.next()) is not None:
            requests += 1
            if not bad & set(part):
                answered += part
            elif len(part) == 1:
                refused += part
            else:
                plan.refused(part)
        return answered, refused, requests

    @pytest.mark.parametrize("bad", range(32))
    def test_one_bad_request_of_32_costs_only_itself(self, bad: int) -> None:
        answered, refused, requests = self.sent(32, {bad})

        assert (answered, refused, requests) == ([n for n in range(32) if n != bad], [bad], 11)

    @pytest.mark.parametrize("seed", range(20))
    def test_whatever_is_bad_each_is_sent_to_its_end_once_and_in_order(self, seed: int) -> None:
        draw = random.Random(seed)
        count = draw.randint(1, 50)
        bad = set(draw.sample(range(count), draw.randint(0, count)))

        answered, refused, requests = self.sent(count, bad)
        assert (answered, refused) == ([n for n in range(count) if n not in bad], sorted(bad))
        assert requests <= min(2 * count - 1, 1 + 2 * len(bad) * math.ceil(math.log2(max(count, 2))))

    def test_nothing_needs_no_request(self) -> None:
        assert self.sent(0, set()) == ([], [], 0)

    def test_one_alone_cannot_be_halved(self) -> None:
        with pytest.raises(ValueError, match="cannot be halved"):
            Bisection([1]).refused([1])
