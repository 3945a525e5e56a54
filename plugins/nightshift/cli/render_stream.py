"""The objects that run a stream in a cluster, without a network: ``nightshift render`` of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from nightshift.fields.arguments import flag, option
from nightshift.fields.arguments import percent as a_percentage
from nightshift.jobset.manifest.yaml_text import to_yaml
from nightshift.settings import Settings
from nightshift.spec import load_stream
from nightshift.stream.manifests.autoscaling import backlog_per_subscriber
from nightshift.stream.manifests.render import render
from nightshift.stream.manifests.render_request import CANARY_PERCENT, StreamRequest, Variant, quantity
from nightshift.stream.manifests.subscriber import SINK_KEY, sink_secret

_PROJECT: Final = ("NIGHTSHIFT_PROJECT", "PROJECT")

_SINK_URL: Final = "NIGHTSHIFT_SINK_URL"

GROUP: Final = "streams"


@dataclass(frozen=True)
class StreamOptions:
    """canary: the file of the same stream with another model version. canary_percent: None for `CANARY_PERCENT`."""

    file: Path = option(type=Path, metavar="FILE", help="the YAML file of a job or a stream")
    keda: bool = flag("--keda", "scale with KEDA's ScaledObjects, to zero too, instead of autoscalers", GROUP)
    engine_url: str | None = option(
        "--engine-url", group=GROUP, metavar="URL", help="the URL that subscribers call; no servers are printed"
    )
    gateway: str | None = option(
        "--gateway",
        group=GROUP,
        metavar="[NAMESPACE/]NAME",
        help="the Inference Gateway behind --engine-url: print servers, their pool and the route to them",
    )
    canary: Path | None = option(
        "--canary",
        group=GROUP,
        type=Path,
        metavar="FILE",
        help="the stream with another model version, for a share of the requests",
    )
    canary_percent: int | None = option(
        "--canary-percent", group=GROUP, type=a_percentage, metavar="N", help="that share, in percent (default: 10)"
    )


def preview(options: StreamOptions, environment: Mapping[str, str]) -> str:
    """The manifests, below comments that say what they were made from. Raises SpecErrors, SettingsError, Unrenderable."""
    spec = load_stream(options.file)
    canary = load_stream(options.canary) if options.canary else None
    name, placeholder = _PROJECT
    missing = not environment.get(name)
    # A stream has no bucket of its own, but the settings insist on one.
    given = {**environment, "NIGHTSHIFT_BUCKET": environment.get("NIGHTSHIFT_BUCKET") or "BUCKET"}
    settings = Settings.from_environment({**given, name: placeholder} if missing else given)
    percent = CANARY_PERCENT if options.canary_percent is None else options.canary_percent
    variant = Variant(options.keda, options.engine_url, options.gateway, canary, percent)
    if settings.local_folder:
        # It runs JobSets alone.
        settings = replace(settings, runtime=Settings.runtime)
    request = StreamRequest(spec, options.file.read_text(encoding="utf-8"), settings, variant, environment.get(_SINK_URL, ""))
    documents = "---\n".join(to_yaml(document) for document in render(request))
    return "".join(f"# {line}\n" for line in _header(request, options.file, missing=missing)) + documents


def _header(request: StreamRequest, file: Path, *, missing: bool) -> list[str]:
    scaling, settings = request.scaling, request.settings
    project, subscription = request.subscription
    least, most = request.replicas_of_subscribers
    share = f"{request.spec.latency.target} x {scaling.messages_per_second:g}/s"
    share += f" = {quantity(backlog_per_subscriber(request))} of the messages"
    lines = [
        f"Rendered by `nightshift render` from {file}; nothing was contacted or applied.",
        f"{least} to {most} subscribers: one for each {share} in the backlog of {subscription} (project {project}).",
        f"They answer at most {scaling.messages_per_second_max:g} messages a second. If more arrive, the backlog grows.",
    ]
    lines += _about_database(request)
    if missing:
        lines.append("{} is not set here: {} is a placeholder.".format(*_PROJECT))
    if settings.pod_patch:
        lines.append("NIGHTSHIFT_POD_PATCH is for the pods of runs, and is not merged here: patch these with kustomize.")
    if request.variant.gateway:
        lines.append(
            "Every address may reach the servers and the endpoint picker: name the gateway's in their NetworkPolicies."
        )
        if not request.on_gke:
            lines.append(
                "NIGHTSHIFT_RUNTIME names no cluster of GKE, so there are no HealthCheckPolicy and GCPBackendPolicy here. A "
                "gateway of GKE takes no server for healthy without them."
            )
    return lines


def _about_database(request: StreamRequest) -> Iterator[str]:
    database = request.database
    if database is None:
        return
    if database.service_account:
        yield f"Subscribers act as {database.service_account}, which logs in to the database with its token."
    else:
        yield f"Not in here: the Secret {sink_secret(request)}, whose key {SINK_KEY} is the sink's URL."
    if not database.addresses:
        ports = ", ".join(map(str, database.ports))
        why = "names no address" if request.sink_url else "is not set here"
        yield f"{_SINK_URL} {why}: subscribers may reach every address at port {ports}."
