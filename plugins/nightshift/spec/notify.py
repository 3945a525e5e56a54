"""Who is notified of what becomes of a job's runs: notifiers that the operator of the deployment has named, by their names.

A job names no class: importing one runs its code in Airflow's DAG processor, and its arguments may name files and connections.
`nightshift.spec.notifiers` reads the operator's file, `nightshift.operators.notify` makes notifiers when they are due.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from nightshift.fields.mistakes import FieldPath, Finding, mistake, nearest
from nightshift.fields.section import Section, pattern
from nightshift.fields.values import shown
from nightshift.spec.document import Document

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
CLASS_PATTERN: Final = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
SMTP: Final = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"
PLACES: Final = ("dag_id", "run_id", "partition", "task_id", "event", "error", "url")
"""What a text may hold as ``{{ NAME }}``: plain texts, each of one line. Nothing else is rendered."""

_PLACE: Final = re.compile(r"\{\{ {0,9}(\w{1,40}) {0,9}\}\}", re.ASCII)
_OPENING: Final = re.compile(r"\{[{%#]")
_OLD_PLACE: Final = re.compile(r"\{\{ {0,9}([\w.]{1,40}) {0,9}\}\}", re.ASCII)
_BEFORE_0_3: Final = {"dag.dag_id": "dag_id", "ds": "partition", "reason": "error", "exception": "error"}
"""What texts held when they were templates of Airflow, and what means the same now."""
_TEXT_MAX: Final = 120
"""Characters of an argument in a message."""


def notifier_name(value: str) -> str:
    # A run that release 0.2.0 opened holds the path of a class. `check` refuses it in a file.
    if not re.fullmatch(NAME_PATTERN, value) and not _is_class(value):
        raise mistake(
            f"{shown(value)} is not the name of a notifier",
            "Write a name from the file that NIGHTSHIFT_NOTIFIERS names: lower-case letters, digits, dashes",
        )
    return value


def _is_class(value: str) -> bool:
    return re.fullmatch(CLASS_PATTERN, value, re.ASCII) is not None


def plain_arguments(value: object) -> object:
    """Names and values that JSON can hold, because Airflow stores them."""
    if not isinstance(value, dict):
        raise mistake(f"{shown(value)} is not a mapping", "Write the arguments by name, for example to: team@example.com")
    for name, each in value.items():
        if not isinstance(name, str) or not name.isidentifier() or name == "context":
            why = "Airflow gives the context itself" if name == "context" else "Use the names that the notifier's class has"
            raise mistake(f"{shown(name)} is not the name of an argument", why)
        if not _plain(each):
            raise mistake(f"The value of {name} is not a text, number, list or mapping", "Put dates and other values in quotes")
    return value


def _plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _plain(each) for name, each in value.items())
    if isinstance(value, list):
        return all(map(_plain, value))
    return value is None or (
        isinstance(value, str | int | float | bool) and not (isinstance(value, float) and not isfinite(value))
    )


class Notifier(Section):
    """One of the deployment's notifiers."""

    notifier: Annotated[str, AfterValidator(notifier_name), pattern(NAME_PATTERN)] = Field(
        description="Its name in the file of NIGHTSHIFT_NOTIFIERS, which the operator of the deployment writes.",
        examples=["search-team"],
    )
    arguments: Annotated[dict[str, Any], BeforeValidator(plain_arguments)] = Field(
        default_factory=dict,
        description="Arguments that the operator has left to jobs. A text may hold "
        f"{', '.join('{{ ' + name + ' }}' for name in PLACES)}.",
        examples=[{"subject": "{{ dag_id }} of {{ partition }}: {{ error }}"}],
    )


def _when(description: str) -> Any:
    return Field(default=None, description=description, examples=[{"notifier": "search-team"}])


class Notify(Section):
    """Whom to tell. None of it affects answers."""

    failed: Notifier | None = _when("When a DAG run has failed.")
    late: Notifier | None = _when("When a DAG run is not over by its deadline: a DeadlineAlert of Airflow.")
    too_many_dead_letters: Notifier | None = _when(
        "When a run has more dead letters than dead_letters.tolerate, so that it is not published."
    )
    doubtful_answers: Notifier | None = _when(
        "When a run is complete, but its answers are nearly all cut, empty or the same. It is published."
    )
    empty: Notifier | None = _when(
        "When the query of a run has no rows, whether the run then fails or publishes none (source.empty)."
    )

    @property
    def told(self) -> dict[str, Notifier]:
        """The notifiers, by the name of the event."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: each for name, each in found.items() if each is not None}


def check(document: Document) -> Iterator[Finding]:
    """What only a file may not hold: a stored job may be of a release that allowed it."""
    notify = document.get("notify")
    for event, entry in notify.items() if isinstance(notify, dict) else ():
        if not isinstance(entry, dict):
            continue  # the model reports it
        name, arguments = entry.get("notifier"), entry.get("arguments")
        if isinstance(name, str) and _is_class(name):
            yield _old_form(("notify", event, "notifier"), name, arguments if isinstance(arguments, dict) else {})
        elif isinstance(arguments, dict):
            for argument, value in arguments.items():
                yield from (Finding(("notify", event, "arguments", argument), *each) for each in unknown_places(value))


def unknown_places(value: Any) -> Iterator[tuple[str, str]]:
    """Problem and remedy of each template in the texts of an argument that is not one of `PLACES`."""
    for text in texts(value):
        for opening in _OPENING.finditer(text):
            place = _PLACE.match(text, opening.start())
            if place and place[1] in PLACES:
                continue
            old = _OLD_PLACE.match(text, opening.start())
            near = (nearest(place[1], PLACES) if place else None) or (_BEFORE_0_3.get(old[1]) if old else None)
            written = old[0] if old else text[opening.start() : opening.start() + 40]
            meant = f"Did you mean {{{{ {near} }}}}? " if near else ""
            yield (
                f"{shown(written)} is not filled in: the text is no template of Airflow",
                f"{meant}A text may hold {', '.join(f'{{{{ {name} }}}}' for name in PLACES)}",
            )


def filled(value: Any, places: Mapping[str, str]) -> Any:
    """An argument with its places filled in. What a place brings is not looked at again.

    places: a text for each of `PLACES`.
    """
    if isinstance(value, str):
        return _PLACE.sub(lambda match: places.get(match[1], match[0]), value)
    if isinstance(value, list):
        return [filled(each, places) for each in value]
    if isinstance(value, dict):
        return {name: filled(each, places) for name, each in value.items()}
    return value


def texts(value: Any) -> Iterator[str]:
    """The texts in an argument."""
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(each)


def _old_form(path: FieldPath, kind: str, arguments: Mapping[str, Any]) -> Finding:
    """What 0.2.0 allowed, and the same in two places."""
    class_name = kind.rpartition(".")[2].removesuffix("Notifier") or "notifier"
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", class_name).replace("_", "-").lower().strip("-")[:63] or "notifier"
    entry = {"notifier": kind} | ({"arguments": {key: _now(value) for key, value in arguments.items()}} if arguments else {})
    return Finding(
        path,
        f"{shown(kind)} is a class, and only the operator of the deployment names classes",
        f"Write {{notifier: {name}}} here, and let the operator add to the file that NIGHTSHIFT_NOTIFIERS names: "
        f"{name}: {json.dumps(entry, ensure_ascii=False)}",
    )


def _now(value: Any) -> Any:
    """An argument with the old names of its places written as the new ones, short enough for a message."""
    if isinstance(value, str):
        text = _OLD_PLACE.sub(lambda match: f"{{{{ {_BEFORE_0_3.get(match[1], match[1])} }}}}", value)
        return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."
    return value if len(json.dumps(value, default=str)) <= _TEXT_MAX else "..."
