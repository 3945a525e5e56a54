"""Who is told what becomes of a job's runs: any of Airflow's notifiers, by the path of its class.

Whether the class exists where Airflow runs is asked when the DAG is parsed (`nightshift.operators.notify`): a job is also read
where no Airflow is.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from nightshift.fields.mistakes import mistake
from nightshift.fields.parts import Section, pattern
from nightshift.fields.values import shown

CLASS_PATTERN: Final = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
SMTP: Final = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"


def class_path(value: str) -> str:
    if not re.fullmatch(CLASS_PATTERN, value, re.ASCII):
        raise mistake(f"{shown(value)} is not the path of a class", f"Write its module and its name, for example {SMTP}")
    return value


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
    return value is None or isinstance(value, str | int | float | bool)


class Notifier(Section):
    """One of Airflow's notifiers."""

    notifier: Annotated[str, AfterValidator(class_path), pattern(CLASS_PATTERN)] = Field(
        description="The path of its class, whose package is installed where Airflow runs.", examples=[SMTP]
    )
    arguments: Annotated[dict[str, Any], BeforeValidator(plain_arguments)] = Field(
        default_factory=dict,
        description="Its arguments. Texts are Airflow's templates if the notifier says so. Secrets belong into a connection.",
        examples=[{"to": "search-team@example.com"}],
    )


class Notify(Section):
    """Whom to tell. None of it affects answers."""

    failed: Notifier | None = Field(
        default=None,
        description="When a DAG run has failed.",
        examples=[{"notifier": SMTP, "arguments": {"to": "search-team@example.com"}}],
    )
    late: Notifier | None = Field(
        default=None,
        description="When a DAG run is not over by its deadline: a DeadlineAlert of Airflow.",
        examples=[{"notifier": SMTP, "arguments": {"to": "search-team@example.com"}}],
    )
    too_many_dead_letters: Notifier | None = Field(
        default=None,
        description="When a run has more dead letters than dead_letters.tolerate, so that it is not published.",
        examples=[{"notifier": SMTP, "arguments": {"to": "search-team@example.com"}}],
    )

    @property
    def told(self) -> dict[str, Notifier]:
        """What is said to somebody, by the name of the key."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: each for name, each in found.items() if each is not None}
