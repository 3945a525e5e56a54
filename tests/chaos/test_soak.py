"""Faults drawn from a seed to real processes; `make chaos N=200` does more of them."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.chaos.inputs import SEED_VARIABLE, chaos_seed
from tests.chaos.soak import soak

pytestmark = [pytest.mark.chaos, pytest.mark.gate, pytest.mark.timeout(1200)]

# The fixed seed's first eight strike every process and every kind of connection; a random one gets most of a deck.
FAULTS = 30 if os.environ.get(SEED_VARIABLE) else 8


def test_whatever_dies_every_row_stands_once_and_nothing_committed_is_computed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = chaos_seed()
    with capsys.disabled():
        print(f"\n{FAULTS} faults with {SEED_VARIABLE}={seed}", flush=True)

    report = asyncio.run(soak(FAULTS, seed, tmp_path))

    with capsys.disabled():
        print(json.dumps(report.to_json()), flush=True)
    assert report.faults.total() == FAULTS
