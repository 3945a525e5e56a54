"""Whether the workers of a run will be able to write, as far as it can be asked before a machine is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec


def check_workers(spec: JobSpec, settings: Settings, tell: Callable[[str], None]) -> None:
    """Asks what the doctor asks about the workers' account, by the bucket's policy: there is no token of that account here.

    Raises SettingsError if the job's name makes it another's account, and NightFailed, in the doctor's words, if it may not
    create what a worker commits. Whatever else keeps the question from being answered is only said.
    """
    from nightshift.doctor import workers
    from nightshift.doctor.context import Surroundings
    from nightshift.doctor.findings import Failed, Skipped
    from nightshift.hooks.deployment import Deployment
    from nightshift.operators.failures import Entry, NightFailed

    settings.account_of(spec.job)
    if settings.local_folder:
        return
    here = Surroundings(settings, Deployment(settings), spec, environment=dict(os.environ))
    try:
        found = list(workers.rights(here))
    except Exception as error:  # No answer is no reason to lose a night: the driver's first heartbeat tries the right itself.
        tell(f"Whether workers may write is not known: {error}")
        return
    for each in found:
        if isinstance(each, Failed) and each.affects == workers.LACKING:
            raise NightFailed(f"{each.problem}. Fix: {each.fix}", Entry.STORE)
        if isinstance(each, Skipped):
            tell(f"Whether workers may write is not known: {each.because}")
