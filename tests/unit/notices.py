"""Notifiers for tests: they write down what they were told."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.sdk.bases.notifier import BaseNotifier


class Blackboard(BaseNotifier):
    """Told only in its own process: it cannot wait in the triggerer."""

    template_fields = ("text",)
    told: ClassVar[list[str]] = []

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        self.told.append(self.text)


class AsyncBlackboard(Blackboard):
    async def async_notify(self, context: Any) -> None:
        self.told.append(self.text)
