"""What the stack's processes inherit from the shell that starts them."""

from __future__ import annotations

import pytest

from local.stack import environment

pytestmark = pytest.mark.unit


def test_the_cache_is_the_callers_and_its_other_settings_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the stack would look for environments and models in another folder than the one that was just filled."""
    monkeypatch.setenv("NIGHTSHIFT_CACHE", "/mnt/large")
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "of-another-deployment")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    inherited = environment.base()

    assert inherited["NIGHTSHIFT_CACHE"] == "/mnt/large"
    assert not {"NIGHTSHIFT_BUCKET", "HF_HUB_OFFLINE"} & inherited.keys()
