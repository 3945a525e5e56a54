"""What the tests of operators share."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from nightshift.jobset.fleet import conclude
from tests.unit.operators.infer_night import Night

# Cloud Composer's image has no psycopg, and these tests run with its packages, too.
collect_ignore = [] if find_spec("psycopg") else ["test_redrive_operator.py"]


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    monkeypatch.setattr(conclude, "RESUME_PAUSE_S", 0)
    return Night(tmp_path)
