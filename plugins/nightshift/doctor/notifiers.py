"""Whether the deployment's notifiers can be made: nothing of them runs before one is due, which is too late to find out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nightshift.doctor import fixes
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.spec import notifiers

NAME: Final = "notifiers"
BREAKS: Final = "notices of jobs with notify:"


def ask(here: Surroundings) -> Iterator[Finding]:
    """Imports their classes, and makes none: that may read files. No notice is sent."""
    file = here.settings.notifiers
    if not file:
        yield Skipped(NAME, f"{notifiers.SETTING} is not set: no job of this deployment can notify")
        return
    try:
        known = notifiers.read(file)
    except notifiers.NotifiersError as error:
        yield Failed(NAME, str(error), f"{BREAKS} these have no DAG", fixes.setting(notifiers.SETTING, "FILE"))
        return
    wrong = {name: why for name, named in known.named.items() if (why := here.connections.notifier(named))}
    for name, why in wrong.items():
        yield Failed(NAME, f"{name}: {why}", BREAKS, f"correct {file}")
    if not wrong:
        yield Ok(NAME, f"{file} names {', '.join(known.named) or 'none'}")
