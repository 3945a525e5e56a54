"""Rows of a chunk."""

from __future__ import annotations

import pytest

from nightshift.planner.sizing import CHUNK_SECONDS_MAX, chunk_rows, chunk_seconds
from tests.builders import a_plan, a_spec

pytestmark = pytest.mark.unit


def of(rows: int, workers: int = 1, speed: float = 1000.0, input_bytes: int = 0, **changes: object) -> int:
    return chunk_rows(a_spec(**changes), rows, workers, speed, input_bytes)[0]


@pytest.mark.parametrize("rows", [0, 1, 7, 1000, 10_000_000])
def test_any_size_gives_a_valid_plan(rows: int) -> None:
    found = of(rows, speed=20)

    assert a_plan(rows, found).rows == rows
    assert found % 4 == 0, "whole requests"


def test_large_rows_make_small_chunks() -> None:
    found, reasons = chunk_rows(a_spec(), 10_000, 1, 1000.0, 10_000 * 1_000_000)

    assert of(10**8, input_bytes=10**8 * 100) == of(10**8) == 3072
    assert found == 32
    assert "rows of 1,000,000 bytes: at most 32 MiB of input per chunk" in reasons
    assert of(100, input_bytes=100 * (1 << 30)) == a_spec().rows_per_request, "one request at least"


@pytest.mark.parametrize("speed", [1.0, 20.0, 100.0])
def test_a_chunk_is_a_small_part_of_a_run(speed: float) -> None:
    rows = 100_000

    assert 2 * of(rows, speed=speed) < rows / 100, "a kill in the middle of two open chunks costs less than a hundredth"


def test_chunks_of_an_unknown_speed_are_a_share_of_the_run() -> None:
    assert (of(100_000, speed=0.0), of(1_000_000, speed=0.0), of(20_000_000, speed=0.0)) == (252, 2500, 3072)


def test_a_chunk_is_a_minute_at_most() -> None:
    """What a kill -9 may cost: docs/develop/benchmarks.md promises it."""
    assert CHUNK_SECONDS_MAX == 60
    assert chunk_seconds(1e9) == 60


@pytest.mark.parametrize("hours", [1, 3, 12])
def test_the_end_of_a_night_costs_less_than_two_percent(hours: int) -> None:
    """Two and a half chunks of each worker, as P7 shows."""
    rows, workers, speed = hours * 3600 * 10 * 1000, 1000, 10.0
    seconds = of(rows, workers, speed, task="classify", request={"input": "{{ text }}"}) / speed

    assert seconds == pytest.approx(chunk_seconds(hours * 3600), rel=0.05)
    assert 2.5 * seconds / (hours * 3600) < 0.02
    assert seconds <= CHUNK_SECONDS_MAX * 1.02


def test_a_chunk_is_at_least_a_second_of_work_if_a_worker_has_four_of_them() -> None:
    assert of(4000, speed=100) == 100
    assert of(200, speed=100) == 52, "a quarter, in whole requests of four"


def test_answers_are_as_much_a_limit_as_input_is() -> None:
    """3,072 vectors of 4,096 numbers are 48 MiB, and so are 32,768 of 384 numbers and 49,152 answers of 1 KiB."""
    vectors, reasons = chunk_rows(a_spec(), 10**8, 1, 5000.0)
    narrow = of(10**8, speed=5000, request__dimensions=384)
    labels = of(10**8, speed=5000, task="classify", request={"input": "{{ text }}"})
    long_texts = of(10**8, speed=5000, task="chat", request={"user": "{{ text }}", "max_tokens": 100_000})

    assert (vectors, narrow, labels, long_texts) == (3072, 32_768, 49_152, 62)
    assert "answers of up to 16,384 bytes: at most 3,072 rows per chunk" in reasons


def test_what_is_copied_into_chunks_counts_in_full_however_small_it_is_in_the_files() -> None:
    """24 million rows with one of four texts of 20 kB: 16 bytes each in a file."""
    found, reasons = chunk_rows(a_spec(), 24_000_000, 4, 500.0, 24_000_000 * 16, copied=20_008)

    assert found == 1_676
    assert found * 20_008 <= 32 << 20
    assert "20,008 bytes of a row are copied: at most 32 MiB of them per chunk" in reasons
    assert chunk_rows(a_spec(), 24_000_000, 4, 500.0, copied=8) == chunk_rows(a_spec(), 24_000_000, 4, 500.0)
