"""Which headers have to agree, who is admitted, and how a refused request is divided. Pure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import orjson
import pytest

from nightshift.batcher.connections import SLOW_S, Account
from nightshift.batcher.dispatch import Caller
from nightshift.batcher.endpoint import Asked
from nightshift.batcher.headers import HeaderRules, end_to_end, of_one, sendable
from nightshift.batcher.kserve import Predict
from nightshift.batcher.rate import RATE_WINDOW_S, RETRY_AFTER_MOST_S, Rate
from nightshift.batcher.readiness import REMEMBERED_MOST, REMEMBERED_S, Questions, Separate, fit, free_axes
from nightshift.batcher.upstream import parts_of
from nightshift.driver.http import HttpClient, Response

pytestmark = pytest.mark.unit

JSON = (b"content-type", b"application/json")


def counting(*headers: tuple[bytes, bytes], rules: HeaderRules | None = None) -> tuple[tuple[str, str], ...] | None:
    return (rules or HeaderRules()).counting([JSON, *headers])


class TestHeadersThatCount:
    def test_an_offer_to_upgrade_is_none_of_them(self) -> None:
        """Java's client makes it with each first request."""
        offer = [(b"connection", b"Upgrade, HTTP2-Settings"), (b"upgrade", b"h2c"), (b"http2-settings", b"AAEAAEAAAAIAAAAB")]

        assert counting(*offer) == counting()
        assert end_to_end([*offer, (b"x-a", b"1")]) == [("x-a", "1")]

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
    ("value", "expected"),
    [(b"a\tb \xc3\xa9", True), (b"a\tb \xe9", False), (b"a\r\nx: y", False), (b"\x00", False), (b"\x7f", False)],
)
def test_values_that_would_be_another_header(value: bytes, expected: bool) -> None:
    assert sendable([JSON, (b"x-a", value)]) is expected


class Peer:
    """A connection as the account knows it. told: why it has been ended."""

    def __init__(self, account: Account, clock: SimpleNamespace, held: int, *, arriving: bool) -> None:
        self._account = account
        self.loop = clock
        self.arriving = arriving
        self.held = held
        self.told: list[str] = []
        account.slow[self] = clock.time()  # type: ignore[index]
        account.add(held, self)  # type: ignore[arg-type]

    def drop(self, reason: str, *, told: bool = True) -> None:
        self.told.append(reason)
        self._account.slow.pop(self, None)  # type: ignore[call-overload]
        self._account.idle.pop(self, None)  # type: ignore[call-overload]
        self._account.add(-self.held)


class TestAccount:
    @pytest.fixture
    def clock(self) -> SimpleNamespace:
        clock = SimpleNamespace(now=0.0)
        clock.time = lambda: clock.now
        return clock

    @staticmethod
    def account(bytes_most: int = 10, connections_most: int = 2) -> Account:
        return Account(bytes_most=bytes_most, connections_most=connections_most, refused=lambda _: None)

    def test_who_has_kept_us_waiting_for_longest_gives_way_first(self, clock: SimpleNamespace) -> None:
        account = self.account()
        peers = []
        for now, arriving in enumerate((True, False, True)):
            clock.now = float(now)
            peers.append(Peer(account, clock, 3, arriving=arriving))
        account.add(6)

        assert [each.told for each in peers] == [["memory"], ["unread"], []]
        assert account.bytes == 9

    def test_a_request_that_arrives_is_patient_with_those_that_have_just_begun(self, clock: SimpleNamespace) -> None:
        account = self.account()
        first = Peer(account, clock, 6, arriving=True)
        second = Peer(account, clock, 3, arriving=True)
        account.bytes += 2

        assert not account.make_room(second, patient=True)  # type: ignore[arg-type]
        clock.now = SLOW_S
        assert account.make_room(second, patient=True)  # type: ignore[arg-type]
        assert (first.told, second.told, account.bytes) == (["memory"], [], 5)

    def test_nobody_gives_way_to_itself(self, clock: SimpleNamespace) -> None:
        account = self.account()
        only = Peer(account, clock, 20, arriving=False)

        assert not account.make_room(only)  # type: ignore[arg-type]
        assert only.told == []
        account.add(-15)
        assert account.make_room(only)  # type: ignore[arg-type]

    def test_a_connection_takes_the_place_of_one_that_owes_for_long_or_is_idle(self, clock: SimpleNamespace) -> None:
        account = self.account()
        reading = Peer(account, clock, 0, arriving=False)
        owing = Peer(account, clock, 0, arriving=True)

        assert account.room_for(2)
        assert not account.room_for(3)
        account.idle[owing] = None  # type: ignore[index]
        assert account.room_for(3)
        assert (owing.told, reading.told) == (["connections"], [])
        late = Peer(account, clock, 0, arriving=True)
        clock.now = SLOW_S
        assert account.room_for(3)
        assert (late.told, reading.told) == (["connections"], [])


class TestRate:
    def test_when_to_come_again_follows_the_rate(self) -> None:
        rate = Rate()
        for second in range(5):
            for _ in range(4):
                rate.add(float(second))

        assert rate.retry_after_s(70, 5.0) == 18, "70 callers at 20 in 5 s"

    def test_it_is_never_less_than_a_second_nor_more_than_a_minute(self) -> None:
        rate = Rate()

        assert rate.retry_after_s(5000, 0.0) == 1, "nothing is known yet"
        rate.add(0.0)
        assert rate.retry_after_s(4999, 0.0) == RETRY_AFTER_MOST_S
        assert rate.retry_after_s(0, 0.0) == 1

    def test_what_was_answered_long_ago_is_forgotten(self) -> None:
        rate = Rate()
        rate.add(0.0)
        rate.add(70.0)

        assert rate.retry_after_s(3, 72.0) == 6, "one in 2 s"
        assert rate.retry_after_s(3, 70.0 + RATE_WINDOW_S) == 1, "nothing is known"


class TestQuestions:
    @pytest.mark.parametrize(
        ("inputs", "outputs", "free"),
        [
            ([[-1, 3]], [[-1, 2]], True),
            ([[-1, 3], [-1, 1]], [[-1]], True),
            ([[-1]], [[-1]], False),
            ([[-1, 3], [2, 3]], [[-1, 2]], False),
            ([[-1, 3]], [[2]], False),
            ([[4, -1]], [[4, -1]], False),
            ([[]], [[-1, 2]], False),
            ([], [[-1, 2]], False),
            ([[-1, 3]], [], False),
        ],
    )
    def test_every_tensors_first_axis_has_to_be_free(
        self, inputs: list[list[int]], outputs: list[list[int]], free: bool
    ) -> None:
        named = [{"name": f"x{number}", "shape": each} for number, each in enumerate(inputs)]
        metadata = {"inputs": named, "outputs": [{"shape": each} for each in outputs]}

        known = free_axes(orjson.dumps(metadata))

        assert known == ({f"x{number}": each[1:] for number, each in enumerate(inputs)} if free else None)

    @pytest.mark.parametrize("metadata", [b"", b"<html>", b"[]", b"{}", b'{"inputs": 1, "outputs": 2}', b'{"inputs": [{}]}'])
    def test_what_says_nothing_of_it_is_not_free(self, metadata: bytes) -> None:
        assert free_axes(metadata) is None

    @pytest.mark.parametrize(
        ("axes", "fits"),
        [
            ({"x": [3], "y": [1, 7]}, True),
            ({"x": [4], "y": [1, 7]}, False),
            ({"x": [], "y": [1, 7]}, False),
            ({"x": [3, 1], "y": [1, 7]}, False),
            ({"x": [3]}, False),
            ({"x": [3], "y": [1, 7], "temp": [1]}, False),
            ({"x": [3], "z": [1, 7]}, False),
        ],
    )
    def test_a_request_with_other_tensors_than_the_model_goes_alone(self, axes: dict[str, list[int]], fits: bool) -> None:
        assert fit(axes, {"x": [3], "y": [1, -1]}) is fits

    async def test_it_is_asked_once_for_each_who_asks(self) -> None:
        asked: list[tuple[str, str]] = []

        class Client:
            async def request(self, _: str, path: str, *, headers: dict[str, str], timeout_s: float) -> Response:
                asked.append((path, headers["authorization"]))
                return Response(
                    200 if headers["authorization"] == "a" else 503,
                    {},
                    b'{"inputs": [{"name": "x", "shape": [-1, 1]}], "outputs": [{"shape": [-1]}]}',
                )

        questions = Questions(cast(HttpClient, Client()), {"authorization": "c"})
        found = [await questions.may_merge("/v2/models/m", who, {"x": [1]}) for who in ({"authorization": "a"}, {}) * 2]

        assert found == [True, False, True, False]
        assert asked == [("/v2/models/m", "a"), ("/v2/models/m", "c")]


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
    def caller(shared: bytes, target: str = "/m") -> Caller:
        return cast(Caller, SimpleNamespace(endpoint=Predict(), target=target, asked=Asked(shared, (b"1",), 1)))

    def test_of_a_model_and_its_parameters_for_a_while(self) -> None:
        separate = Separate()
        separate.add(self.caller(b"s"), 10.0)

        assert separate.holds(self.caller(b"s"), 10.0)
        assert separate.holds(self.caller(b"s"), 9.9 + REMEMBERED_S)
        assert not separate.holds(self.caller(b"s"), 10.0 + REMEMBERED_S)
        assert not separate.holds(self.caller(b"s", "/n"), 10.0)
        assert not separate.holds(self.caller(b"t"), 10.0)

    def test_it_takes_little_memory_whatever_callers_send(self) -> None:
        separate = Separate()
        for number in range(REMEMBERED_MOST + 1):
            separate.add(self.caller(b"%d" % number), 0.0)

        held = [separate.holds(self.caller(b"%d" % number), 0.0) for number in range(REMEMBERED_MOST + 1)]
        assert held == [False] + [True] * REMEMBERED_MOST
