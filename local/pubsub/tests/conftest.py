"""One emulator for all tests of this folder, and clients for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.emulators import PubSubEmulator
from tests.integration.pubsub import PubSub


@pytest.fixture
def pubsub(pubsub_emulator: PubSubEmulator) -> Iterator[PubSub]:
    made = PubSub(pubsub_emulator)
    yield made
    made.end_faults()
    made.close()
