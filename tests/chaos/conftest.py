"""What every test of this folder gets."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _variables_of_its_own() -> Iterator[None]:
    """A test finds its stack by variables, as official clients do; the next test has another stack, or none."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
