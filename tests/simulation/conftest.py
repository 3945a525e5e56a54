"""How long a test of the simulation may take."""

from __future__ import annotations

import pytest

PATIENCE_S = 3600
"""It only computes, in virtual time. Other tiers run beside it, and may leave it little of the machine for a long time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("simulation") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PATIENCE_S))
