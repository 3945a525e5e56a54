"""Task kinds: one small pure file each, named as jobs name them. Adding a kind is adding its file.

A module whose name begins with an underscore, and `base`, is what kinds share.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from nightshift.tasks._request import TaskRequest

__all__ = ["TASK_KINDS", "TaskRequest", "request_model"]

TASK_KINDS: Final[tuple[str, ...]] = tuple(
    sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base" and module.name[0] != "_")
)


def request_model(task: str) -> type[TaskRequest]:
    """The class of the section ``request:`` of a kind in TASK_KINDS."""
    model: type[TaskRequest] = importlib.import_module(f"nightshift.tasks.{task}").Request
    return model
