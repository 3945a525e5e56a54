"""The recordings have the one form that the recorder writes, so that another recording shows what differs and nothing else."""

from __future__ import annotations

import json

import pytest

from tests.unit.recorded import CASES, FOLDER, as_text

pytestmark = pytest.mark.unit


def test_every_recording_is_in_the_recorders_form() -> None:
    texts = {case: (FOLDER / f"{case}.json").read_text() for case in CASES}

    assert [case for case, text in texts.items() if as_text(json.loads(text)) != text] == []
