"""The ports of a worker's engines: their names, numbers and variables. An engine's number counts from 0."""

from __future__ import annotations

from typing import Any

from nightshift.jobset.manifest.constants import ENGINE_PORT


def name(engine: int) -> str:
    """Of a container's port."""
    return f"engine-{engine}" if engine else "engine"


def variable(engine: int) -> str:
    """With the port's number: the local runtime chooses another one."""
    return f"ENGINE_PORT_{engine}" if engine else "ENGINE_PORT"


def of_containers(engines: int) -> list[dict[str, Any]]:
    return [{"name": name(engine), "containerPort": ENGINE_PORT + engine} for engine in range(engines)]


def environment(engines: int) -> list[dict[str, Any]]:
    return [{"name": variable(engine), "value": str(ENGINE_PORT + engine)} for engine in range(engines)]


def references(engines: int) -> list[str]:
    """To the variables, as a kubelet reads them."""
    return [f"$({variable(engine)})" for engine in range(engines)]


def chosen(engines: int) -> str:
    """For the annotation by which the local runtime sets the variables."""
    named = [f"{name(engine)}={variable(engine)}" for engine in range(engines)]
    return ",".join([*named, "metrics=NIGHTSHIFT_METRICS_PORT"])
