"""Cloud Storage's emulator for a measure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.emulators import StorageEmulator, start_storage


@contextmanager
def emulated_bucket(folder: Path, name: str) -> Iterator[StorageEmulator]:
    """An emulator with one bucket. This process and those that it starts find it by STORAGE_EMULATOR_HOST."""
    storage = start_storage(folder)
    before = os.environ.get("STORAGE_EMULATOR_HOST")
    os.environ["STORAGE_EMULATOR_HOST"] = storage.url
    try:
        storage.client().create_bucket(name)
        yield storage
    finally:
        del os.environ["STORAGE_EMULATOR_HOST"]
        if before is not None:
            os.environ["STORAGE_EMULATOR_HOST"] = before
        storage.kill()
