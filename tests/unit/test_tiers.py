"""`make test` runs the files of each tier by the markers that they name, so a file that names none would never run."""

from __future__ import annotations

from collections import Counter

import pytest

from local.environments import ROOT
from local.test import TIERS, files

pytestmark = pytest.mark.unit


def test_every_test_file_is_in_one_tier() -> None:
    found = Counter(file for tier in TIERS for file in files(tier))

    assert found == Counter(str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py"))
