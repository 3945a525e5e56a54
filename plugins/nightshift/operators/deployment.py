"""Where a deployment's JobSets run, and the trigger that waits for them there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nightshift.hooks.runtime import runtime_for

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

    from nightshift.jobset.runtime import Runtime
    from nightshift.settings import Settings


@dataclass(frozen=True)
class Deployment:
    """runtime: for the task. trigger: makes what waits; takes jobsets, deadline, owner, get_logs and limits as keywords."""

    runtime: Runtime
    trigger: Callable[..., BaseTrigger]


def deployment_for(settings: Settings) -> Deployment:
    """Raises NoSuchRuntime for a runtime that does not exist."""
    reached = runtime_for(settings)
    if reached.is_gke:
        from nightshift.triggers.kubernetes_engine import GKEJobSetTrigger as Trigger
    else:
        from nightshift.triggers.jobset import KubernetesJobSetTrigger as Trigger  # type: ignore[assignment]
    return Deployment(reached.runtime, partial(Trigger, namespace=settings.namespace, **reached.connection))
