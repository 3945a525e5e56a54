"""Each way in which a test can end; `test_runner` has a pytest run them. No test of the project: pytest is given its name."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.unit


@pytest.fixture
def broken() -> None:
    raise RuntimeError("no engine")


def test_passes() -> None: ...


def test_fails() -> None:
    assert "rows".upper() == "answers"


def test_cannot_begin(broken: None) -> None: ...


def test_skips() -> None:
    pytest.skip("no disk")


@pytest.mark.xfail(reason="some day", strict=True)
def test_is_expected_to_fail() -> None:
    raise AssertionError
