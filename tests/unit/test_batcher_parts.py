"""Which headers have to agree, who is admitted, and how a refused request is divided. Pure."""

from __future__ import annotations

from functools import partial

import pytest

from nightshift.stream.batcher.admission import COPIES, RATE_WINDOW_S, RETRY_AFTER_MOST_S, SLOW_S, Admission, Place, Rate
from nightshift.stream.batcher.division import REMEMBERED_MOST, REMEMBERED_S, Separate, parts_of
from nightshift.stream.batcher.endpoint import Asked
from nightshift.stream.batcher.headers import HeaderRules, end_to_end, of_one, sendable
from nightshift.stream.batcher.kserve import Predict

pytestmark = pytest.mark.unit

JSON = (b"content-type", b"application/json")


def counting(*headers: tuple[bytes, bytes], rules: HeaderRules | None = None) -> tuple[tuple[str, str], ...] | None:
    return (rules or HeaderRules()).counting([JSON, *headers])


class TestHeadersThatCount:
    @pytest.mark.parametrize(
        "name",
        [
            *(
                b"authorization",
                b"x-api-key",
                b"api-key",
                b"cookie",
                b"x-tenant",
                b"x-anything",
                b"idempotency-key",
                b"baggage",
            ),
            *(b"x-forwarded-user", b"x-forwarded-email", b"x-forwarded-groups", b"x-forwarded-access-token"),
            *(b"x-forwarded-preferred-username", b"x-forwarded-client-cert", b"x-forwarded-host", b"x-forwarded-prefix"),
            *(b"x-forwarded-anything", b"x-forwarded_for", b"x-envoy-downstream-service-cluster", b"x-envoy-peer-metadata-id"),
            *(b"x-envoy-anything", b"sec-token-binding", b"sec-websocket-protocol", b"x-b3-tenant", b"x-stainless-user"),
            *(b"x-auth-request-user", b"x-amzn-oidc-identity", b"x-goog-authenticated-user-email"),
        ],
    )
    def test_any_that_may_name_a_tenant(self, name: bytes) -> None:
        assert counting((name, b"one")) == ((name.decode(), "one"),)

    @pytest.mark.parametrize(
        "name",
        [
            *("user-agent", "accept-encoding", "content-length", "host", "traceparent", "x-request-id", "te", "via"),
            *("x-forwarded-for", "x-forwarded-proto", "x-forwarded-port", "forwarded", "x-real-ip", "X-FORWARDED-FOR"),
        ],
    )
    def test_not_what_names_the_callers_software_route_or_trace(self, name: str) -> None:
        assert counting((name.encode(), b"one")) == ()

    @pytest.mark.parametrize("name", ["x-stainless-os", "sec-fetch-mode", "keep-alive", "transfer-encoding", "x-b3-traceid"])
    def test_nor_those_of_a_family_or_a_connection(self, name: str) -> None:
        assert counting((name.encode(), b"one")) == ()

    def test_names_are_sorted_and_repeated_ones_joined(self) -> None:
        headers = ((b"x-b", b"1"), (b"x-a", b"2"), (b"x-b", b"3"), (b"cookie", b"c=1"), (b"cookie", b"d=2"))

        assert counting(*headers) == (("cookie", "c=1; d=2"), ("x-a", "2"), ("x-b", "1, 3"))

    def test_who_has_the_connection_header_drop_something_shares_with_nobody(self) -> None:
        """A proxy must not pass it on; merged, it would be one with those who never had it."""
        assert counting((b"connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"x-end", b"2")) is None
        assert end_to_end([(b"Connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"x-end", b"2")]) == [("x-end", "2")]
        assert counting((b"connection", b"close"), (b"Connection", b"Keep-Alive, TE,"), (b"x-end", b"2")) == (("x-end", "2"),)

    @pytest.mark.parametrize(
        ("value", "name"),
        [
            (b"authorization, x-tenant", "authorization"),
            (b"close ,\tX-API-KEY", "x-api-key"),
            (b"cookie", "cookie"),
            (b"X-Forwarded-User", "x-forwarded-user"),
            (b"x-own", "x-own"),
        ],
    )
    def test_a_header_that_names_the_caller_cannot_be_dropped(self, value: bytes, name: str) -> None:
        assert HeaderRules(key=["X-Own"]).dropped([JSON, (b"Connection", b"keep-alive"), (b"CONNECTION", value)]) == name

    def test_others_can(self) -> None:
        assert HeaderRules().dropped([JSON, (b"connection", b"close, x-hop, te"), (b"authorization", b"a")]) is None

    def test_a_user_may_count_more_and_ignore_more(self) -> None:
        rules = HeaderRules(key=["X-Forwarded-For", "User-Agent"], ignored=["X-Session"])

        headers = ((b"x-forwarded-for", b"1"), (b"user-agent", b"2"), (b"x-session", b"3"))
        assert counting(*headers, rules=rules) == (("user-agent", "2"), ("x-forwarded-for", "1"))

    @pytest.mark.parametrize(
        "name", ["Authorization", "cookie", "X-API-Key", "api-key", "X-Forwarded-User", "x-forwarded-client-cert"]
    )
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
    @pytest.mark.parametrize("value", [b"NTLM TlRMTVNTUAAB", b"Negotiate YII", b"negotiate"])
    def test_credentials_that_hold_for_a_connection_do(self, value: bytes) -> None:
        """Others' requests on it would be answered with this caller's rights."""
        assert counting((b"authorization", value)) is None
        assert counting((b"authorization", b"Bearer " + value)) is not None

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
    @staticmethod
    def entered(admission: Admission, *, size: int = 1, now: float = 0.0) -> Place | None:
        """A whole request's place; None if there is no room for it."""
        place = admission.begin(now)
        if admission.grow(place, size, now) and admission.enter(place):
            return place
        admission.leave(place, now)
        return None

    def test_callers_are_bounded(self) -> None:
        admission = Admission(callers_most=2, bytes_most=1000)
        first = self.entered(admission)

        assert first is not None
        assert (self.entered(admission) is None, self.entered(admission)) == (False, None)
        admission.leave(first, 0.0)
        assert self.entered(admission) is not None

    def test_their_memory_too(self) -> None:
        admission = Admission(callers_most=99, bytes_most=COPIES * 10)
        first = self.entered(admission, size=6)

        assert first is not None
        assert self.entered(admission, size=6) is None
        admission.leave(first, 0.0)
        second = self.entered(admission, size=6)
        assert second is not None
        admission.leave(second, 0.0)
        assert repr(admission) == f"<Admission arriving=0 callers=0/99 bytes=0/{COPIES * 10}>"

    def test_requests_that_never_arrive_keep_nobody_out(self) -> None:
        admission = Admission(callers_most=2, bytes_most=COPIES * 10)
        silent = [admission.begin(0.0) for _ in range(1000)]

        assert not admission.full
        assert self.entered(admission, size=10) is not None
        assert admission.in_hand == 1001
        for place in silent:
            admission.leave(place, 0.0)
        assert (admission.in_hand, admission.callers) == (1, 1)

    def test_only_what_has_arrived_is_charged(self) -> None:
        admission = Admission(callers_most=9, bytes_most=COPIES * 10)
        place = admission.begin(0.0)

        assert [admission.grow(place, 4, 0.0), admission.grow(place, 6, 0.0), admission.grow(place, 1, 0.0)] == [
            True,
            True,
            False,
        ]
        assert admission.bytes == COPIES * 10

    def test_who_sends_slowly_gives_way_the_oldest_first(self) -> None:
        admission = Admission(callers_most=9, bytes_most=COPIES * 12)
        told: list[int] = []
        slow = []
        for number in range(3):
            place = admission.begin(float(number))
            assert admission.grow(place, 4, float(number))
            place.give_way = partial(told.append, number)
            slow.append(place)
        now = 1.0 + SLOW_S

        assert self.entered(admission, size=5, now=now) is not None
        assert told == [0, 1]
        assert [place.turned_away for place in slow] == [True, True, False]
        assert not admission.grow(slow[0], 1, now), "it is told, but has not heard it yet"
        for place in slow:
            admission.leave(place, now)
        assert (admission.bytes, admission.callers) == (COPIES * 5, 1)

    def test_but_not_who_has_just_begun_nor_whose_request_is_whole(self) -> None:
        admission = Admission(callers_most=9, bytes_most=COPIES * 10)
        assert self.entered(admission, size=5, now=0.0) is not None
        fresh = admission.begin(100.0)
        assert admission.grow(fresh, 5, 100.0)

        assert self.entered(admission, size=1, now=100.0 + SLOW_S / 2) is None
        assert not fresh.turned_away

    def test_when_to_come_again_follows_the_rate(self) -> None:
        admission = Admission(callers_most=1000, bytes_most=1000)
        places = [self.entered(admission, size=0) for _ in range(90)]
        for second in range(5):
            for _ in range(4):
                self.leave(admission, places, float(second))

        assert admission.callers == 70
        assert admission.retry_after_s(5.0) == 18, "70 callers at 20 in 5 s"

    def test_it_is_never_less_than_a_second_nor_more_than_a_minute(self) -> None:
        admission = Admission(callers_most=10_000, bytes_most=1000)
        places = [self.entered(admission, size=0) for _ in range(5000)]

        assert admission.retry_after_s(0.0) == 1, "nothing is known yet"
        self.leave(admission, places, 0.0)
        assert admission.retry_after_s(0.0) == RETRY_AFTER_MOST_S
        for _ in range(4998):
            self.leave(admission, places, 1.0)
        assert admission.retry_after_s(1.0) == 1

    @staticmethod
    def leave(admission: Admission, places: list[Place | None], now: float) -> None:
        place = places.pop()
        assert place is not None
        admission.leave(place, now)

    def test_what_was_answered_long_ago_is_forgotten(self) -> None:
        rate = Rate()
        rate.add(100, 0.0)

        assert rate.per_s(RETRY_AFTER_MOST_S) == 0.0
        rate.add(10, 70.0)
        assert rate.per_s(72.0) == 5.0
        assert rate.per_s(70.0 + RATE_WINDOW_S) == 0.0


class TestParting:
    @pytest.mark.parametrize("count", [2, 5, 6, 7, 31, 32, 33, 100])
    def test_whichever_is_bad_each_other_is_in_a_part_without_it(self, count: int) -> None:
        parts = [set(part) for part in parts_of(range(count))]

        for bad in range(count):
            clean = set().union(*(part for part in parts if bad not in part))
            assert clean == set(range(count)) - {bad}

    @pytest.mark.parametrize("count", range(2, 70))
    def test_it_never_costs_more_than_twice_the_requests(self, count: int) -> None:
        """The merged one, its parts, and each alone if all are bad."""
        parts = parts_of(range(count))

        alone = 0 if len(parts) == count else count
        assert 1 + len(parts) + alone <= 2 * count
        assert all(parts)

    def test_at_32_it_costs_what_halving_does(self) -> None:
        """11 requests, with the merged one and the bad one alone."""
        assert (len(parts_of(range(32))), sum(map(len, parts_of(range(32))))) == (9, 64)


class TestSeparate:
    @staticmethod
    def asked(shared: bytes) -> Asked:
        return Asked(shared, (b"1",), 1)

    def test_of_a_model_and_its_parameters_for_a_while(self) -> None:
        separate, endpoint = Separate(), Predict()
        separate.add(endpoint, "/m", self.asked(b"s"), 10.0)

        assert separate.holds(endpoint, "/m", self.asked(b"s"), 10.0)
        assert separate.holds(endpoint, "/m", self.asked(b"s"), 9.9 + REMEMBERED_S)
        assert not separate.holds(endpoint, "/m", self.asked(b"s"), 10.0 + REMEMBERED_S)
        assert not separate.holds(endpoint, "/n", self.asked(b"s"), 10.0)
        assert not separate.holds(endpoint, "/m", self.asked(b"t"), 10.0)

    def test_it_takes_little_memory_whatever_callers_send(self) -> None:
        separate, endpoint = Separate(), Predict()
        for number in range(REMEMBERED_MOST + 1):
            separate.add(endpoint, "/m", self.asked(b"%d" % number), 0.0)

        held = [separate.holds(endpoint, "/m", self.asked(b"%d" % number), 0.0) for number in range(REMEMBERED_MOST + 1)]
        assert held == [False] + [True] * REMEMBERED_MOST
