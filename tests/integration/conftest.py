"""The emulators of `tests.integration.fixtures`, which the tests of the stand-ins in ``local`` share."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # As a plugin, so that a session starts each emulator once: fixtures of two conftests would be two.
    config.pluginmanager.import_plugin("tests.integration.fixtures")
