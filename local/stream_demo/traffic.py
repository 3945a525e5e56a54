"""Publishes the demo's messages at a rate that rises and falls, as that of uploads does over a day."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.types import PubsubMessage

TICK_S: Final = 0.25
PERIOD_S: Final = 20.0


class Traffic(threading.Thread):
    """ids: of what is published so far, in order. rate: messages a second, on average."""

    def __init__(self, publisher: PublisherClient, topic: str, rows: Sequence[Mapping[str, Any]], rate: float) -> None:
        super().__init__(daemon=True)
        self._publisher = publisher
        self._topic = topic
        self._rows = rows
        self._rate = rate
        self.ids: list[str] = []

    @property
    def over(self) -> bool:
        return len(self.ids) == len(self._rows)

    @property
    def halfway(self) -> bool:
        return 2 * len(self.ids) > len(self._rows)

    def run(self) -> None:
        began, due = time.monotonic(), 0.0
        while not self.over:
            due += TICK_S * self._rate * (1 + 0.9 * math.sin(2 * math.pi * (time.monotonic() - began) / PERIOD_S))
            part = self._rows[len(self.ids) : math.ceil(due)]
            if part:
                messages = [PubsubMessage(data=json.dumps(row).encode()) for row in part]
                self.ids += self._publisher.publish(topic=self._topic, messages=messages).message_ids
            time.sleep(TICK_S)
