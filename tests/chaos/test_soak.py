"""Faults drawn from a seed to real processes; `make chaos N=200` does more of them."""

import asyncio
import json
import os
import secrets
from pathlib import Path

import pytest

from tests.chaos.soak import soak

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]

FAULTS = 30


def test_whatever_dies_every_row_stands_once_and_nothing_committed_is_computed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("NIGHTSHIFT_CHAOS_SEED") or secrets.randbelow(1 << 31))
    with capsys.disabled():
        print(f"\n{FAULTS} faults with NIGHTSHIFT_CHAOS_SEED={seed}", flush=True)

    report = asyncio.run(soak(FAULTS, seed, tmp_path))

    with capsys.disabled():
        print(json.dumps(report.to_json()), flush=True)
    assert report.faults.total() == FAULTS
