"""One emulator for all tests of this folder, and clients for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.emulators import PubSubEmulator
from tests.integration.pubsub import PubSub


@pytest.fixture
def pubsub(pubsub_emulator: PubSubEmulator) -> Iterator[PubSub]:
    made = PubSub(pubsub_emulator)
    # Only some tests are about what the service may leave for the next reply.
    made.replies(full=True)
    yield made
    made.replies(full=False, seed=0)
    made.end_faults()
    made.close()
