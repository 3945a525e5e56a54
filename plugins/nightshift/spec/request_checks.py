"""Checks of what a job reads of its rows: the columns that templates and keys name. For nightly jobs and streams."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final

from nightshift.fields.mistakes import FieldPath, Finding, nearest
from nightshift.fields.values import COLUMN_PATTERN
from nightshift.spec.document import Document
from nightshift.spec.vllm_flags import dashed
from nightshift.tasks import TASK_KINDS, request_model

STRUCTURED: Final = "structured-outputs-config"
COLUMNS_LISTED: Final = 30
"""In a message."""


@dataclass(frozen=True)
class Columns:
    """The columns that rows have. of: what they come from.

    has: begins the sentence that lists them. add: how to get another.
    """

    names: tuple[str, ...]
    of: str
    has: str
    add: str

    def lacking(self, path: FieldPath, user: str, column: str) -> Iterator[Finding]:
        """A column must be there in the same spelling: BigQuery folds case, the Parquet files of a run do not."""
        if column in self.names:
            return
        same = next((name for name in self.names if name.casefold() == column.casefold()), None)
        if same is not None:
            yield Finding(path, f"{user} names the column {column!r}, which {self.of} spells {same!r}", "Spell it the same way")
            return
        near = nearest(column, self.names)
        listed = ", ".join(self.names[:COLUMNS_LISTED]) or "no named column"
        if len(self.names) > COLUMNS_LISTED:
            listed += f" and {len(self.names) - COLUMNS_LISTED:,} more"
        odd = next((name for name in self.names if name.startswith(column) and not name.isidentifier()), None)
        if odd is not None:
            yield Finding(path, f"{user} cannot name the column {odd!r}", "Rename it with AS: letters, digits and underscores")
            return
        remedy = (f"Did you mean {near!r}? " if near else f"{self.add}, or name another. ") + f"{self.has} {listed}"
        yield Finding(path, f"{user} names the column {column!r}, which {self.of} lacks", remedy)


def is_text(value: Any) -> bool:
    if not isinstance(value, str) or not value.strip():
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair, from an escape; the model refuses it
        return False
    return True


def request(document: Document, columns: Columns | None) -> Iterator[Finding]:
    """Templates and columns that the request of the job's task names, and what the task kind itself finds.

    columns: of the rows; None if unknown.
    """
    task, values = document.get("task"), document.get("request")
    if not isinstance(task, str) or task not in TASK_KINDS or not isinstance(values, dict):
        return
    request = request_model(task)
    sources = [(name, values[name]) for name in request.TEMPLATES if is_text(values.get(name))]
    named = [(name, values[name]) for name in request.COLUMNS if isinstance(values.get(name), str)]
    used = bool(named)
    for name, source in sources:
        compiled = yield from _template(document, ("request", name), source, columns)
        used = used or compiled is None or bool(compiled)
        if columns is not None:
            for column in compiled or ():
                yield from columns.lacking(("request", name), "The template", column)
    # A request without its question already has a mistake.
    if not used and sources and sources[-1][0] == request.TEMPLATES[-1]:
        problem = f"The template{'s use' if len(sources) > 1 else ' uses'} no column, so every row would be the same"
        yield Finding(("request", sources[-1][0]), problem, "Name one, for example {{ summary }}")
    for name, column in named:
        if columns is not None and re.fullmatch(COLUMN_PATTERN, column):  # else the model reports it
            yield from columns.lacking(("request", name), "The request", column)
    for finding in request.findings(values, _backend(document)):
        yield Finding(("request", *finding.path), finding.problem, finding.remedy)


def _backend(document: Document) -> str:
    """Of vLLM's structured output, as far as the job's arguments name one in JSON."""
    args = document.get("engine", "args")
    found = [value for name, value in args.items() if dashed(str(name)) == STRUCTURED] if isinstance(args, dict) else []
    try:
        config = json.loads(found[0]) if found else {}
    except (ValueError, TypeError):
        return "auto"
    named = config.get("backend") if isinstance(config, dict) else None
    return named if isinstance(named, str) else "auto"


def _template(
    document: Document, path: FieldPath, source: str, columns: Columns | None
) -> Generator[Finding, None, tuple[str, ...] | None]:
    """Returns the columns that the template reads; None for one that is wrong in itself."""
    import jinja2

    from nightshift.tasks.base import examine_template

    try:
        found = examine_template(source, columns.names if columns else ())
    except jinja2.TemplateSyntaxError as error:
        unknown = isinstance(error, jinja2.TemplateAssertionError)
        column = "Write a column as {{ column }}; rename it with AS if its name is 'not' or has spaces or signs"
        built_in = "Use the filters and tests built into Jinja2"
        if unknown and "json" in str(error.message).lower():
            built_in = "Take a field of JSON in the query: JSON_VALUE(column, '$.field') AS field"
        remedy = getattr(error, "remedy", built_in if unknown else column)
        line = document.line_within(path, error.lineno)
        yield Finding(path, f"The template does not compile: {error.message}", remedy, line)
        return None
    except (RecursionError, SyntaxError, ValueError) as error:
        yield Finding(path, f"Python cannot compile the template: {error}", "Write a simpler one, or do the work in the query")
        return None
    if found.reads_files:
        yield Finding(path, "The template reads another file", "Write the whole template here; it cannot include files")
    for each in found.problems:
        yield Finding(path, each.problem, each.remedy, document.line_within(path, each.line))
    return None if found.problems else found.columns
