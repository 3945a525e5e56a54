"""The reservation that the pods of a profile ``-reservation`` take their machines from.

Google's page "Consume reserved zonal resources" has the selectors. A future reservation, calendar mode included, becomes such a
reservation when its period begins.
"""

from __future__ import annotations

from typing import Final

from nightshift.profiles import Provisioning, WorkerShape
from nightshift.settings import Settings, SettingsError
from nightshift.spec import JobSpec

_PREFIX: Final = "cloud.google.com/reservation-"


def selector(worker: WorkerShape, settings: Settings) -> dict[str, str]:
    """The node labels that name it; none for other profiles.

    Raises SettingsError if the deployment names no reservation of the worker's machine.
    """
    if worker.profile.provisioning is not Provisioning.RESERVATION or worker.machine is None:
        return {}
    found, machine = settings.reserved, worker.machine.name
    if machine not in found:
        named = f"names only {', '.join(found)}" if found else "is not set"
        raise SettingsError(
            f"The profile {worker.profile.name} needs a reservation of {machine}, but NIGHTSHIFT_RESERVATIONS {named}. Add "
            f"{machine}=NAME of the reservation to it, or {machine}=projects/PROJECT/reservations/NAME if another project "
            "shares it."
        )
    project, name = found[machine]
    return {
        f"{_PREFIX}name": name,
        f"{_PREFIX}affinity": "specific",
        **({f"{_PREFIX}project": project} if project else {}),
    }


def check(spec: JobSpec, settings: Settings) -> None:
    """Raises SettingsError if a profile that the job may get needs a reservation that the deployment does not name."""
    for profile in spec.compute.profiles:
        selector(spec.compute.worker(profile), settings)
