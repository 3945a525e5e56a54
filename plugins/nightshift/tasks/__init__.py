"""Task kinds: one small pure file each, with the name that jobs use. To add a kind, add its file.

Modules whose names begin with an underscore, and `base`, are shared by the kinds.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from nightshift.tasks._judgement import ABORT, ERROR, Verdict, choice_that_ended, judge
from nightshift.tasks._request import TaskRequest
from nightshift.tasks._values import NoProcess, Rendering

__all__ = [
    "ABORT",
    "ERROR",
    "TASK_KINDS",
    "NoProcess",
    "Rendering",
    "TaskRequest",
    "Verdict",
    "choice_that_ended",
    "judge",
    "request_model",
]

TASK_KINDS: Final[tuple[str, ...]] = tuple(
    sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base" and module.name[0] != "_")
)


def request_model(task: str) -> type[TaskRequest]:
    """The class of the section ``request:`` of a kind in TASK_KINDS."""
    model: type[TaskRequest] = importlib.import_module(f"nightshift.tasks.{task}").Request
    return model
