"""All profiles: an accelerator and how its machine is bought.

The name has both: ``gpu-h100`` is on demand, ``gpu-h100-reservation`` is from a reservation, ``gpu-h100-spot`` is Spot,
``gpu-h100-flex`` is flex-start, and ``gpu-h100-any`` leaves the choice to the cluster, whose ComputeClass tries a reservation,
then Spot, then flex-start, then on demand. What is not sold on demand has no profile for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nightshift.profiles.hardware import GPUS, TPUS, Gpu, Tpu

START_UP_SECONDS: Final = 600.0
"""Node, image and weights, before the first row: the least that any profile allows for it (`WorkerShape.load_seconds`). A job's
deadline is checked against it before anything is known of the model."""
WORK_SECONDS_MIN: Final = 120.0
"""The least that a deadline must leave after start-up."""


class Provisioning(StrEnum):
    """How the machines of a profile are bought; the value is the end of the profile's name."""

    ON_DEMAND = ""
    RESERVATION = "-reservation"
    SPOT = "-spot"
    FLEX_START = "-flex"
    ANY = "-any"


FALLS_BACK: Final = (Provisioning.RESERVATION, Provisioning.SPOT, Provisioning.FLEX_START, Provisioning.ON_DEMAND)
"""From what is paid for anyway to what is dearest."""


@dataclass(frozen=True)
class Profile:
    """One kind of worker.

    hardware: None for a worker without an accelerator. fallbacks: the profiles to try, in this order, when this one gets no
    capacity.
    """

    name: str
    provisioning: Provisioning
    hardware: Gpu | Tpu | None
    fallbacks: tuple[str, ...] = ()


def is_sold(hardware: Gpu | Tpu | None, how: Provisioning) -> bool:
    """Whether it can be had in this way at all."""
    return how is not Provisioning.ON_DEMAND or not isinstance(hardware, Gpu) or hardware.on_demand


def _family(name: str, hardware: Gpu | Tpu) -> Iterator[Profile]:
    sold = [how for how in Provisioning if is_sold(hardware, how)]
    for provisioning in sold:
        later = FALLS_BACK[FALLS_BACK.index(provisioning) + 1 :] if provisioning in FALLS_BACK else ()
        fallbacks = tuple(f"{name}{other}" for other in later if other in sold)
        yield Profile(f"{name}{provisioning}", provisioning, hardware, fallbacks)


_ALL: Final = (
    Profile("cpu", Provisioning.ON_DEMAND, None),
    *(profile for name, gpu in GPUS.items() for profile in _family(f"gpu-{name}", gpu)),
    *(profile for name, tpu in TPUS.items() for profile in _family(f"tpu-{name}", tpu)),
)
PROFILES: Final[dict[str, Profile]] = {profile.name: profile for profile in _ALL}


def ways(name: str) -> tuple[str, ...]:
    """The ways in which the accelerator `name`, such as ``gpu-h200``, can be had: its profiles. Empty for no accelerator."""
    return tuple(each.name for each in PROFILES.values() if each.hardware and each.name == f"{name}{each.provisioning}")
