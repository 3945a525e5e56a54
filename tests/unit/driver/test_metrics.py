"""The driver's metrics as a scraper reads them, over a real port."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import fields

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nightshift.driver import pages
from nightshift.driver.metrics import StatsCollector, serve_metrics
from nightshift.driver.pages import CONNECTIONS_MOST
from nightshift.driver.stats import Retry, Stats
from nightshift.tasks.base import Reason

pytestmark = pytest.mark.unit

APART = ("retries", "dead", "times", "requests")
"""Of `Stats`, what is no plain number."""


@pytest.fixture
def stats() -> Stats:
    """Every count another, so that none can stand for another."""
    stats = Stats()
    for number, item in enumerate(fields(Stats), start=1):
        if item.name not in APART:
            setattr(stats, item.name, number)
    stats.retries.update({reason: 101 + number for number, reason in enumerate(map(str, Retry))})
    stats.dead.update({reason: 201 + number for number, reason in enumerate(map(str, Reason))})
    stats.requests.add(301.0)
    return stats


@pytest.fixture
def url(stats: Stats) -> Iterator[str]:
    served = serve_metrics(0, StatsCollector(stats))
    assert served
    yield f"http://127.0.0.1:{served.port}/metrics"
    served.close()


def scrape(url: str) -> dict[tuple[str, str], float]:
    """Value by sample name and its one label's value."""
    with urllib.request.urlopen(url, timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    return {
        (sample.name.removeprefix("nightshift_driver_"), next(iter(sample.labels.values()), "")): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_count_has_a_metric(stats: Stats, url: str) -> None:
    found = scrape(url)

    own = {key: value for key, value in found.items() if not key[0].startswith(("process_", "python_"))}
    own = {key: value for key, value in own.items() if not key[0].endswith("_bucket")}
    assert own == {
        ("rows_total", "answered"): stats.rows_answered,
        ("rows_total", "dead_letter"): stats.rows_dead,
        ("rows_total", "from_partial"): stats.rows_from_partials,
        ("rows_in_flight", ""): stats.rows_in_flight,
        ("requests_in_flight", ""): stats.requests_in_flight,
        ("requests_total", ""): stats.requests_sent,
        ("window_rows", ""): stats.window,
        **{("retries_total", str(reason)): 101 + number for number, reason in enumerate(Retry)},
        **{("dead_letters_total", str(reason)): 201 + number for number, reason in enumerate(Reason)},
        ("request_duration_seconds_count", ""): 1,
        ("request_duration_seconds_sum", ""): 301,
        ("tokens_total", "in"): stats.prompt_tokens,
        ("tokens_total", "out"): stats.output_tokens,
        ("chunk_commits_total", "committed"): stats.chunks_committed,
        ("chunk_commits_total", "lost"): stats.chunks_lost,
        ("rows_lost_total", ""): stats.rows_lost,
        ("bytes_total", "read"): stats.bytes_read,
        ("bytes_total", "committed"): stats.bytes_committed,
        ("engine_wait_seconds_total", ""): stats.engine_wait_s,
        ("engine_failing_seconds_total", ""): stats.engine_failing_s,
        ("canaries_total", ""): stats.canaries,
        ("engine_losses_total", ""): stats.engine_losses,
        ("chunks_open", ""): stats.chunks_open,
    }
    numbers = [value for (name, _), value in own.items() if value < 101 and "duration" not in name]
    assert len(set(numbers)) == len(fields(Stats)) - len(APART), "a field of Stats has no metric"


def test_a_scrape_sees_what_is_so_now(stats: Stats, url: str) -> None:
    stats.rows_answered = 7
    stats.retries["timeout"] = 1

    found = scrape(url)

    assert found["rows_total", "answered"] == 7
    assert found["retries_total", "timeout"] == 1


def test_the_process_is_measured_too(url: str) -> None:
    assert scrape(url)["process_resident_memory_bytes", ""] > 0


def test_two_workers_in_one_process_keep_apart(url: str) -> None:
    served = serve_metrics(0, StatsCollector(Stats()))
    assert served

    assert scrape(f"http://127.0.0.1:{served.port}/metrics")["rows_lost_total", ""] == 0
    served.close()


@pytest.mark.parametrize("offset", [0, 100_000])
def test_a_port_that_cannot_be_had_is_a_warning(offset: int, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()

        assert serve_metrics(taken.getsockname()[1] + offset, StatsCollector(Stats())) is None

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", "metrics not served")]


def test_an_address_that_is_not_this_machines_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert serve_metrics(0, StatsCollector(Stats()), address="192.0.2.1") is None

    assert [record.getMessage() for record in caplog.records] == ["metrics not served"]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_one_address_may_be_chosen_and_others_do_not_answer() -> None:
    served = serve_metrics(0, StatsCollector(Stats()), address="127.0.0.1")
    assert served
    try:
        assert get(f"http://127.0.0.1:{served.port}/metrics")[0] == 200
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", served.port), timeout=10)
    finally:
        served.close()


def test_readiness_says_what_is_missing_now() -> None:
    missing = ["pull", "the engine"]
    served = serve_metrics(0, StatsCollector(Stats()), missing=lambda: missing)
    assert served
    try:
        url = f"http://127.0.0.1:{served.port}/nightshift/readyz"
        assert get(url) == (503, "waiting for pull, the engine\n")
        missing.clear()
        assert get(url) == (200, "ready\n")
        assert get(f"http://127.0.0.1:{served.port}/other") == (404, "Pages are /metrics, /, /nightshift/readyz\n")
    finally:
        served.close()


def test_a_scraper_gets_the_format_that_it_accepts(url: str) -> None:
    request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        assert reply.headers["Content-Type"].startswith("application/openmetrics-text")
        assert reply.read().endswith(b"# EOF\n")


class TestCallersThatMisbehave:
    def half(self, url: str, sent: bytes = b"GET /metrics HTTP/1.1\r\n") -> socket.socket:
        host, port = url.split("/")[2].split(":")
        connection = socket.create_connection((host, int(port)), timeout=10)
        connection.sendall(sent)
        return connection

    def test_many_half_requests_cost_neither_threads_nor_the_metrics(self, url: str) -> None:
        before = threading.active_count()
        halves = [self.half(url) for _ in range(300)]
        try:
            assert scrape(url)["rows_total", "answered"]
            assert threading.active_count() == before
            ended = sum(each.recv(1) == b"" for each in halves[: 300 - CONNECTIONS_MOST])
            assert ended == 300 - CONNECTIONS_MOST, "the oldest made way"
        finally:
            for each in halves:
                each.close()

    def test_those_that_are_left_at_the_end_are_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else each is a warning at some later time: "Event loop is closed"."""
        told: list[object] = []
        monkeypatch.setattr(sys, "unraisablehook", told.append)
        served = serve_metrics(0, StatsCollector(Stats()))
        assert served
        with self.half(f"http://127.0.0.1:{served.port}/metrics") as connection:
            assert get(f"http://127.0.0.1:{served.port}/")[0] == 200
            served.close()
            assert connection.recv(1) == b""
        del served
        gc.collect()
        assert told == []

    def test_a_head_without_an_end_is_broken_off(self, url: str) -> None:
        with (
            self.half(url, b"GET /metrics HTTP/1.1\r\nA: " + b"x" * (64 << 10)) as connection,
            contextlib.suppress(ConnectionError),
        ):
            assert connection.recv(1) == b""

    def test_one_that_sends_nothing_more_is_broken_off(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pages, "ANSWER_S", 0.1)
        with self.half(url) as connection:
            assert connection.recv(1) == b""

    @pytest.mark.parametrize(
        ("head", "status"),
        [
            (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
            (b"\xff\xfe\x00\r\n\r\n", 405),
            (b"\r\n\r\n", 405),
            (b"GET\r\n\r\n", 404),
            (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
            (b"GET /metrics?name[]=x HTTP/1.1\r\nHost\r\n: :\r\n\r\n", 200),
        ],
    )
    def test_what_is_not_asked_properly_has_an_answer_all_the_same(self, url: str, head: bytes, status: int) -> None:
        with self.half(url, head) as connection:
            assert connection.recv(1 << 16).startswith(f"HTTP/1.1 {status} ".encode())
