"""The driver's metrics as a scraper reads them, over a real port."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import fields

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nightshift.driver.metrics import StatsCollector, serve_metrics
from nightshift.driver.stats import Stats

pytestmark = pytest.mark.unit


@pytest.fixture
def stats() -> Stats:
    """Every count another, so that none can stand for another."""
    stats = Stats()
    for number, item in enumerate(fields(Stats), start=1):
        if item.name not in ("retries", "dead"):
            setattr(stats, item.name, number)
    stats.retries.update(busy=101, gone=102)
    stats.dead.update(too_long=103)
    return stats


@pytest.fixture
def url(stats: Stats) -> Iterator[str]:
    served = serve_metrics(0, StatsCollector(stats))
    assert served
    server, port = served
    yield f"http://127.0.0.1:{port}/metrics"
    server.shutdown()
    server.server_close()


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
    assert own == {
        ("rows_total", "answered"): stats.rows_answered,
        ("rows_total", "dead_letter"): stats.rows_dead,
        ("rows_total", "from_partial"): stats.rows_from_partials,
        ("rows_in_flight", ""): stats.rows_in_flight,
        ("requests_in_flight", ""): stats.requests_in_flight,
        ("requests_total", ""): stats.requests_sent,
        ("window_rows", ""): stats.window,
        ("retries_total", "busy"): 101,
        ("retries_total", "gone"): 102,
        ("dead_letters_total", "too_long"): 103,
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
    numbers = [value for value in own.values() if value < 101]
    assert len(set(numbers)) == len(fields(Stats)) - len(("retries", "dead", "times")), "a field of Stats has no metric"


def test_a_scrape_sees_what_is_so_now(stats: Stats, url: str) -> None:
    stats.rows_answered = 7
    stats.retries["timeout"] += 1

    found = scrape(url)

    assert found["rows_total", "answered"] == 7
    assert found["retries_total", "timeout"] == 1


def test_the_process_is_measured_too(url: str) -> None:
    assert scrape(url)["process_resident_memory_bytes", ""] > 0


def test_two_workers_in_one_process_keep_apart(url: str) -> None:
    served = serve_metrics(0, StatsCollector(Stats()))
    assert served
    server, port = served

    assert scrape(f"http://127.0.0.1:{port}/metrics")["rows_lost_total", ""] == 0
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("offset", [0, 100_000])
def test_a_port_that_cannot_be_had_is_a_warning(offset: int, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()

        assert serve_metrics(taken.getsockname()[1] + offset, StatsCollector(Stats())) is None

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", "metrics not served")]
