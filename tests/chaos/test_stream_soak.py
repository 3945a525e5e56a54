"""A stream whose every process is killed, frozen or cut off: `tests.chaos.stream_soak`, with few messages and few faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.stream_soak import soak

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1700)]


@pytest.mark.gate
def test_no_message_is_lost_or_doubled_whatever_is_killed(tmp_path: Path) -> None:
    report = soak(4_000, 11, 7, tmp_path)

    assert report.faults.total() == 11
    assert (report.lost, report.twice, report.wrong) == (0, 0, 0)
    assert report.hostile.total() == 40
    assert report.answered + report.dead >= report.messages == 4_040
    assert report.died == 0, "no message ends a process"
