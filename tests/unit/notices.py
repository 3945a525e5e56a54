"""Notifiers for tests: they write down what they were told."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from airflow.sdk.bases.notifier import BaseNotifier


class Blackboard(BaseNotifier):
    """template_fields, template_ext: what Airflow would render, and read from a file."""

    template_fields = ("text",)
    template_ext = (".sql", ".txt")
    told: ClassVar[list[str]] = []
    contexts: ClassVar[list[Any]] = []

    def __init__(self, text: str = "", colour: str = "") -> None:
        self.text = text  # before Airflow's own part, which looks for files
        super().__init__()

    def notify(self, context: Any) -> None:
        self.told.append(self.text)
        self.contexts.append(context)


class AsyncBlackboard(BaseNotifier):
    """Told in a loop alone."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    async def async_notify(self, context: Any) -> None:
        Blackboard.told.append(self.text)


class Leaving(Blackboard):
    def notify(self, context: Any) -> None:
        sys.exit(3)


class Hanging(Blackboard):
    begun = threading.Event()

    def notify(self, context: Any) -> None:
        self.begun.set()
        time.sleep(600)


class Paper(BaseNotifier):
    """Outlives its process."""

    def __init__(self, text: str, to: str) -> None:
        super().__init__()
        self.text, self.to = text, to

    def notify(self, context: Any) -> None:
        with Path(self.to).open("a") as paper:
            paper.write(f"{self.text}\n")


class Page(BaseNotifier):
    def __init__(self, html_content: str) -> None:
        super().__init__()
        self.html_content = html_content

    def notify(self, context: Any) -> None:
        Blackboard.told.append(self.html_content)
