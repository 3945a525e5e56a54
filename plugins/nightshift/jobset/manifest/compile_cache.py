"""Around an engine that compiles: who fetches what one like it has compiled before, and who leaves it for others (ADR 0032)."""

from __future__ import annotations

from typing import Any, Final

from nightshift.jobset.manifest import disk
from nightshift.jobset.manifest.escaping import literal
from nightshift.jobset.manifest.pod_template import SERVER_IDENTITY, client_of
from nightshift.jobset.manifest.render_request import RenderRequest
from nightshift.jobset.manifest.server import image, launch
from nightshift.run.models.compile_cache import KEY_VARIABLE, ROOT_VARIABLE
from nightshift.run.names import digest_of
from nightshift.settings import JOB_MARK

_CONTAINER: Final = "compile-cache"


def fetching(request: RenderRequest) -> list[dict[str, Any]]:
    """The container that runs before the server, as the server's user, whose files these then are."""
    if not _is_kept(request):
        return []
    settings, command = request.settings, ["python3", "-m", "nightshift.driver.compile_cache"]
    env = [{"name": "NIGHTSHIFT_RUN_URL", "value": literal(request.run.url(settings.bucket))}, *variables(request)]
    container = client_of(settings, name=_CONTAINER, image=settings.driver_image, command=command, env=env)
    container.pop("ports")  # Nobody calls it.
    container["securityContext"] = {**container["securityContext"], **SERVER_IDENTITY}
    container["volumeMounts"] = [*container["volumeMounts"], disk.mount()]
    return [container]


def variables(request: RenderRequest) -> list[dict[str, Any]]:
    """Where the engine's cache is, and the key of what is in it. On the local runtime the image's environment says where, if it
    does: a mount has no effect there."""
    if not _is_kept(request):
        return []
    key = {"name": KEY_VARIABLE, "value": _key(request)}
    return [*(each for each in disk.environment(request) if each["name"] == ROOT_VARIABLE), key]


def reading(request: RenderRequest, driver: dict[str, Any]) -> dict[str, Any]:
    """The driver's container, which reads the engine's cache, as the same user, because some files are only for that one, and
    can change nothing that an engine would run."""
    if not _is_kept(request):
        return driver
    identity = {**driver["securityContext"], **SERVER_IDENTITY}
    return {
        **driver,
        "securityContext": identity,
        "volumeMounts": [*driver["volumeMounts"], {**disk.mount(), "readOnly": True}],
    }


def _is_kept(request: RenderRequest) -> bool:
    """Only where each job has an account of its own: with a shared one, any job's worker could leave code for another's engine.

    Not on a TPU, whose engine compiles otherwise, and not for a worker of several hosts, which have different parts of a model.
    """
    worker = request.worker
    eager = request.spec.engine.flags.get("enforce-eager") is True
    return JOB_MARK in request.settings.service_account and worker.hosts == 1 and not worker.is_tpu and not eager


def _key(request: RenderRequest) -> str:
    """16 hex digits of the engine as it is started, and of its accelerators, however their machine is bought.

    What vLLM takes of an archive its own keys decide. This one has to differ where those may: an archive is never replaced.
    """
    worker, hardware = request.worker, request.worker.profile.hardware
    started = {"image": image(request), **launch(request), "accelerators": worker.accelerators}
    return digest_of({**started, "of": hardware.label if hardware else ""})
