"""What a row was asked: its prompt, rendered again from the run's frozen spec and the exported row.

Templates are the user's programs, and here a server may run them: each is rendered in a process of its own, which ends after
five seconds of computing (`nightshift.tasks._subprocess`), one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nightshift.run.answers.bounded import as_json, cut, shown
from nightshift.spec import JobSpec
from nightshift.tasks import NoProcess
from nightshift.tasks.base import BadInput, SlowTemplate, Text

_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class PromptText:
    """fields: the templates of the job's request, rendered, and the columns that it sends, by the names of its fields, such as
    ``user`` or ``input``; cut to a bounded length. problem: why the row has none, in words; None if it has one."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def text(self) -> str:
        """The fields as one text. A single one without its name."""
        parts = {name: value if isinstance(value, str) else str(value) for name, value in self.fields.items()}
        return next(iter(parts.values())) if len(parts) == 1 else "\n\n".join(f"{name}: {part}" for name, part in parts.items())

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = as_json(self)
        return {**found, "text": self.text}


class Prompts:
    """Of one job. Not once it has failed because a template took too long: then the rest of the look goes without."""

    def __init__(self, spec: JobSpec) -> None:
        request = spec.request
        self._templates = {
            name: Text(source, spec.rendering, blank=True, apart=True)
            for name in request.TEMPLATES
            if (source := getattr(request, name)) is not None
        }
        self._columns = {name: column for name in request.COLUMNS if (column := getattr(request, name)) is not None}
        self._stopped: str | None = None

    def of(self, row: Mapping[str, Any]) -> PromptText:
        """row: with the columns that the templates read. Never raises for what a row or a template holds."""
        found: dict[str, Any] = {}
        if self._stopped is not None:
            return PromptText({}, self._stopped)
        try:
            for name, text in self._templates.items():
                if missing := [column for column in text.columns if column not in row]:
                    return PromptText(found, f"the row's {', '.join(missing)} could not be read")
                with _one_at_a_time:
                    found[name] = cut(text.of(row))
        except BadInput as error:
            if isinstance(error, SlowTemplate):
                self._stopped = f"not rendered: {error} on an earlier row"
            return PromptText(found, str(error))
        except NoProcess as error:
            self._stopped = str(error)
            return PromptText(found, str(error))
        found |= {name: shown(row.get(column)) for name, column in self._columns.items()}
        return PromptText(found)
