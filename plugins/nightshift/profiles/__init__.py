"""Compute profiles: the kinds of worker, by the name that a job uses, and what a job may change about one.

`profiles.hardware` has the machines, `profiles.fit` decides how many of their accelerators one engine spans.
"""

from nightshift.profiles.catalog import (
    FALLS_BACK,
    PROFILES,
    START_UP_SECONDS,
    WORK_SECONDS_MIN,
    Profile,
    Provisioning,
    is_sold,
    ways,
)
from nightshift.profiles.fit import Misfit, Span, fit, misfits
from nightshift.profiles.worker import CPU_KV_CACHE_GIB, WorkerShape

__all__ = [
    "CPU_KV_CACHE_GIB",
    "FALLS_BACK",
    "PROFILES",
    "START_UP_SECONDS",
    "WORK_SECONDS_MIN",
    "Misfit",
    "Profile",
    "Provisioning",
    "Span",
    "WorkerShape",
    "fit",
    "is_sold",
    "misfits",
    "ways",
]
