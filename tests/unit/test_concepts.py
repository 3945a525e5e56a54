"""The budget of concepts in docs/architecture.md is what there is."""

from __future__ import annotations

import re

import pytest

from tests.unit.concepts import ROOT, counts

pytestmark = pytest.mark.unit


def test_the_page_has_todays_counts() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page[page.index("<!-- concepts -->") : page.index("<!-- end of concepts -->")]

    assert {name: int(count) for name, count in re.findall(r"^\| (.*?) \| (\d+) \|", table, re.MULTILINE)} == counts()
