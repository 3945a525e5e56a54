"""An operator's notifier, which is foreign code: its class, and a thread of its own in which it runs.

What it raises (`sys.exit` too) ends neither the DAG processor nor the triggerer, signals reach Airflow as usual, and one that
hangs delays its caller by at most `LIMIT_S`.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from nightshift.spec import notifiers

if TYPE_CHECKING:
    from airflow.sdk.bases.notifier import BaseNotifier

    from nightshift.spec.notifiers import Named

LIMIT_S: Final = 60.0
"""Seconds that a notifier may take."""
_PLACE_MAX: Final = 500
"""Characters of one placeholder's text: an error may hold a whole page."""


class NotNotified(Exception):
    """A notifier was due and did not do its work; the message has the reason."""


def isolated_class(named: Named) -> type[BaseNotifier]:
    """The class of a notifier. Raises NotNotified, also for whatever importing it raises."""
    found: list[type[BaseNotifier]] = []
    isolated("The notifier", lambda: found.append(notifier_class(named)))
    return found[0]


def notifier_class(named: Named) -> type[BaseNotifier]:
    """Imports it here. Raises NotNotified."""
    from airflow.sdk.bases.notifier import BaseNotifier

    module, _, name = named.notifier.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:
        raise NotNotified(
            f"{named.notifier} cannot be imported here: {error}. Install its package wherever Airflow runs (DAG processor, "
            f"workers, triggerer), or correct the path in the file that {notifiers.SETTING} names."
        ) from error
    if not (isinstance(found, type) and issubclass(found, BaseNotifier)):
        raise NotNotified(
            f"{named.notifier} is not a notifier of Airflow (a subclass of {BaseNotifier.__module__}.BaseNotifier)."
        )
    return found


def isolated(whose: str, work: Callable[[], None]) -> None:
    """Runs foreign code in a thread. Raises NotNotified for whatever it raises, and if it takes longer than `LIMIT_S`.

    whose: the beginning of a message about it.
    """
    ended: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="notifier", daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    if thread.is_alive():
        raise NotNotified(f"{whose} has not ended within {LIMIT_S:.0f} s. Look at the service that it calls.")
    if ended:
        (error,) = ended
        why = (
            str(error)
            if isinstance(error, NotNotified | notifiers.NotifiersError)
            else f"{type(error).__name__}: {one_line(error)}"
        )
        raise NotNotified(f"{whose} has failed: {why}") from error


def one_line(value: Any) -> str:
    """The text of a value, without control characters, and cut."""
    text = "" if value is None else " ".join(str(value).split())
    shown = "".join(character for character in text if character.isprintable())
    return shown if len(shown) <= _PLACE_MAX else f"{shown[:_PLACE_MAX]}..."
