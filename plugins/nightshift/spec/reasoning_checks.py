"""Checks of a job that keeps the model's reasoning: an engine that tells it apart, and room for its column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.spec.columns import REASONING
from nightshift.spec.document import Document
from nightshift.spec.vllm_flags import dashed
from nightshift.tasks import TASK_KINDS, request_model

PARSER: Final = "reasoning-parser"
"""The flag of vLLM with which it takes the reasoning out of the text."""
_COLUMNS: Final = (("destination", "column"), ("destination", "partition_column"), ("sink", "column"))


def reasoning(document: Document) -> Iterator[Finding]:
    """Every mistake of `request.reasoning: keep`."""
    path: FieldPath = ("request", "reasoning")
    task = document.get("task")
    known = isinstance(task, str) and task in TASK_KINDS and "reasoning" in request_model(task).model_fields
    if not known or document.get(*path) != "keep":
        return
    args = document.get("engine", "args")
    if args is None or (isinstance(args, dict) and PARSER not in map(dashed, map(str, args))):
        problem = "The engine has no reasoning parser, so it would leave the reasoning in the text"
        yield Finding(path, problem, f"Add the parser of your model, for example engine.args: {{{PARSER}: qwen3}}")
    key = document.get("source", "key")
    names: dict[FieldPath, Any] = {place: document.get(*place) for place in _COLUMNS}
    names |= {("source", "key", place): name for place, name in enumerate(key if isinstance(key, list) else ())}
    for place, name in names.items():
        if isinstance(name, str) and name.casefold() == REASONING:
            yield Finding(place, f"{name!r} is the column of the reasoning that the job keeps", "Choose another name")
