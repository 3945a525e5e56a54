"""Asks the engines of the pinned vLLM what they make of schemas: the list that decides which ones a job may have is theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.driver.vllm import in_server_environment

pytestmark = pytest.mark.integration

SCHEMAS = Path(__file__).parents[2] / "unit" / "schemas"


def test_the_list_is_what_the_engines_say() -> None:
    known = json.loads((SCHEMAS / "engines.json").read_text())

    asked = in_server_environment(SCHEMAS / "ask.py", stdin=json.dumps([each["schema"] for each in known]))

    assert [(each["schema"], *said) for each, said in zip(known, asked, strict=True)] == [
        (each["schema"], each["xgrammar"], each["llguidance"]) for each in known
    ]
