"""A trigger that only shows that the triggerer has nightshift."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from nightshift.triggers.polling import SETTLE_S

VERSION = 1


class DoctorTrigger(BaseTrigger):
    """
    Fires once, with what the triggerer has.

    The event: ``{"version", "nightshift", "settings"}``: the release of the code that ran, and the deployment's settings there
    as a dict, None if they are missing or not valid.

    :param seconds: how long it waits; the default is the shortest that costs no retry.
    """

    def __init__(self, *, seconds: float = SETTLE_S) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds = seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "nightshift.triggers.doctor.DoctorTrigger", {"seconds": self.seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(self.seconds)
        yield TriggerEvent(doctor_event())  # type: ignore[no-untyped-call]


def doctor_event() -> dict[str, Any]:
    """What `DoctorTrigger` fires, plain JSON."""
    from dataclasses import asdict

    from nightshift import __version__
    from nightshift.settings import Settings, SettingsError

    try:
        settings = asdict(Settings.from_environment())
    except SettingsError:
        settings = None
    return {"version": VERSION, "nightshift": __version__, "settings": settings}
