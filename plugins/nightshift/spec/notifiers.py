"""The notifiers that the operator of a deployment names: a YAML file outside the folder of jobs (``NIGHTSHIFT_NOTIFIERS``).

    search-team:
      notifier: airflow.providers.smtp.notifications.smtp.SmtpNotifier
      arguments:
        from_email: nights@example.com
        to: search-team@example.com
        subject: "{{ dag_id }}: {{ event }}"
        html_content: "Run {{ run_id }} of {{ partition }}: {{ error }}"
      jobs_may_set: [subject]

A job gives only the arguments in jobs_may_set. None of those may name a file or a connection: a notifier reads files when it
is made, and whoever may choose a connection may use it. No class is imported here: `nightshift.operators.notify` does that
when a notifier is due.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from nightshift.fields.mistakes import choice, mistake
from nightshift.fields.section import Listed, Section
from nightshift.fields.values import shown
from nightshift.spec import notify
from nightshift.spec.document import BYTES_MAX, Document, Unreadable, contents

if TYPE_CHECKING:
    from nightshift.spec.model import JobSpec

SETTING: Final = "NIGHTSHIFT_NOTIFIERS"
_OPERATORS_OWN: Final = re.compile(
    r"(.*_)?(conn|connection|conn_id|connection_id|path|paths|file|files|filename|filenames|dir|folder|template|templates|"
    r"attachment|attachments|hook|hook_params|context)",
    re.IGNORECASE,
)
"""Names of arguments that a notifier takes for a connection or a file."""


class NotifiersError(ValueError):
    """The operator's file cannot be used. The message says why, with a line for each mistake."""


def class_path(value: str) -> str:
    if not re.fullmatch(notify.CLASS_PATTERN, value, re.ASCII):
        raise mistake(f"{shown(value)} is not the path of a class", f"Write its module and its name, for example {notify.SMTP}")
    return value


class Named(Section):
    """One notifier as the operator describes it."""

    notifier: Annotated[str, AfterValidator(class_path)]
    arguments: Annotated[dict[str, Any], BeforeValidator(notify.plain_arguments)] = Field(default_factory=dict)
    jobs_may_set: Listed[str] = ()


@dataclass(frozen=True)
class Notifiers:
    """What the operator has named. file: where, None if the deployment names none."""

    file: Path | None = None
    named: Mapping[str, Named] = field(default_factory=dict)

    def mistakes(self, wanted: notify.Notifier) -> Iterator[str]:
        """What is wrong with a job's reference: a sentence with its remedy each."""
        if self.file is None:
            yield (
                f"The deployment names no notifiers. Let its operator set {SETTING} to the path of a YAML file that names "
                f"{wanted.notifier} (docs/operate/nights.md)."
            )
            return
        found = self.named.get(wanted.notifier)
        if found is None:
            known = choice(wanted.notifier, self.named) if self.named else "It names none"
            yield f"{self.file} names no notifier {wanted.notifier!r}. {known}."
            return
        for name in wanted.arguments:
            if name not in found.jobs_may_set:
                free = f"Jobs may set {', '.join(found.jobs_may_set)}" if found.jobs_may_set else "Jobs may set none"
                yield f"The operator has not left the argument {name!r} of {wanted.notifier} to jobs. {free} ({self.file})."


def read(file: str | Path, *, jobs: Path | None = None) -> Notifiers:
    """The operator's file; no notifiers for an empty path. Raises NotifiersError.

    jobs: the folder of job files, whose authors must not write this file.
    """
    if not str(file):
        return Notifiers()
    path = Path(file)
    if jobs is not None and path.resolve().is_relative_to(jobs.resolve()):
        raise NotifiersError(f"{path}: It is in the folder of jobs, whose authors it binds. Move it, and change {SETTING}.")
    try:
        content = contents(path)
        document = Document(content.decode("utf-8-sig"), "A file of notifiers")
    except (OSError, UnicodeDecodeError) as error:
        raise NotifiersError(f"{path}: The file cannot be read: {error}. Check {SETTING}.") from error
    except Unreadable as error:
        raise NotifiersError(f"{path}:{error.line}: {error.problem}. {error.remedy}.") from error
    if len(content) > BYTES_MAX:
        raise NotifiersError(f"{path}: The file has more than {BYTES_MAX >> 10} KiB.")
    value = {} if document.value is None else document.value
    if not isinstance(value, dict):
        raise NotifiersError(f"{path}: It is not a mapping. Write 'NAME: {{notifier: CLASS}}' for each notifier.")
    twice = [f"{'.'.join(map(str, each.path))}: {each.problem}. {each.remedy}." for each in document.findings]
    named: dict[str, Named] = {}
    wrong = [*twice, *_mistakes(value, named)]
    if wrong:
        raise NotifiersError("\n".join(f"{path}: {each}" for each in wrong))
    return Notifiers(path, named)


def wrong(shown: Path, spec: JobSpec, file: str, *, jobs: Path | None = None) -> Iterator[str]:
    """What is wrong with a job's notifiers, a line each: FILE: FIELD: problem. file, jobs: as for `read`."""
    wanted = spec.notify.told if spec.notify else {}
    if not wanted:
        return
    try:
        known = read(file, jobs=jobs)
    except NotifiersError as error:
        yield from (f"{shown}: notify: {line}" for line in str(error).splitlines())
        return
    for event, notifier in wanted.items():
        yield from (f"{shown}: notify.{event}: {each}" for each in known.mistakes(notifier))


def _mistakes(value: Mapping[Any, Any], named: dict[str, Named]) -> Iterator[str]:
    """Puts the good ones into `named`."""
    for name, entry in value.items():
        if not isinstance(name, str) or not re.fullmatch(notify.NAME_PATTERN, name):
            yield f"{name}: It is not a name. Use lower-case letters, digits and dashes."
            continue
        try:
            found = Named.model_validate(entry)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                yield f"{'.'.join(map(str, (name, *each['loc'])))}: {each['msg']}"
            continue
        own = [each for each in found.jobs_may_set if not each.isidentifier() or _OPERATORS_OWN.fullmatch(each)]
        for argument in own:
            yield (f"{name}.jobs_may_set: {argument!r} cannot be left to jobs: it names a file or a connection. Use arguments.")
        for argument, given in found.arguments.items():
            places = list(notify.unknown_places(given))
            if not places and _OPERATORS_OWN.fullmatch(argument) and any("{{" in text for text in notify.texts(given)):
                places = [("A name of a file or a connection is fixed", "Write it without {{ }}")]
            yield from (f"{name}.arguments.{argument}: {problem}. {remedy}." for problem, remedy in places)
        named[name] = found
