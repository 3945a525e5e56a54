"""The stand-ins' own tests (``local/*/tests``) get what those below ``tests`` get: Airflow's home and the emulators."""

from __future__ import annotations

import pytest

import tests.conftest  # noqa: F401  Airflow reads its environment when it is imported.


def pytest_configure(config: pytest.Config) -> None:
    # See tests/integration/conftest.py.
    config.pluginmanager.import_plugin("tests.integration.fixtures")
