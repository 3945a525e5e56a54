"""The command ``nightshift render`` for a stream: the objects that run it in a cluster, without a network."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from nightshift.jobset.manifest.text import to_yaml
from nightshift.serving.autoscaling import backlog_per_subscriber
from nightshift.serving.order import CANARY_PERCENT, SERVER, StreamOrder, Variant, quantity
from nightshift.serving.render import Unrenderable, render
from nightshift.serving.subscriber import SINK_KEY, SINK_PORT, sink_secret
from nightshift.settings import Settings, SettingsError
from nightshift.spec import SpecErrors, load_stream

BAD_INPUT: Final = 2
_PROJECT: Final = ("NIGHTSHIFT_PROJECT", "PROJECT")


@dataclass(frozen=True)
class Options:
    """canary: the file of the same stream with another model version; None if there is none."""

    file: Path
    keda: bool = False
    engine_url: str | None = None
    gateway: str | None = None
    canary: Path | None = None
    canary_percent: int = CANARY_PERCENT


def run(options: Options, environment: Mapping[str, str] | None = None) -> int:
    """Prints the YAML; the exit code. What is wrong goes to stderr, a line for each mistake."""
    try:
        print(preview(options, os.environ if environment is None else environment), end="")
    except (SpecErrors, SettingsError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except Unrenderable as error:
        for problem in error.problems:
            print(f"{options.file}: {problem}", file=sys.stderr)
        return BAD_INPUT
    return 0


def preview(options: Options, environment: Mapping[str, str]) -> str:
    """The manifests, below comments that say what they were made from. Raises SpecErrors, SettingsError, Unrenderable."""
    spec = load_stream(options.file)
    canary = load_stream(options.canary) if options.canary else None
    name, placeholder = _PROJECT
    missing = not environment.get(name)
    # A stream has no bucket of its own, but the settings insist on one.
    given = {**environment, "NIGHTSHIFT_BUCKET": environment.get("NIGHTSHIFT_BUCKET") or "BUCKET"}
    settings = Settings.from_environment({**given, name: placeholder} if missing else given)
    variant = Variant(options.keda, options.engine_url, options.gateway, canary, options.canary_percent)
    # Never for the local runtime, which runs JobSets alone.
    order = StreamOrder(spec, options.file.read_text(encoding="utf-8"), replace(settings, runtime="kubernetes"), variant)
    documents = "---\n".join(to_yaml(document) for document in render(order))
    return "".join(f"# {line}\n" for line in _header(order, options.file, missing=missing)) + documents


def _header(order: StreamOrder, file: Path, *, missing: bool) -> list[str]:
    scaling, settings = order.scaling, order.settings
    project, subscription = order.subscription
    least, most = order.replicas_of_subscribers
    share = (
        f"{order.spec.latency.target} x {scaling.messages_per_second:g}/s = {quantity(backlog_per_subscriber(order))} messages"
    )
    lines = [
        f"Rendered by `nightshift render` from {file}; nothing was contacted or applied.",
        f"{least} to {most} subscribers: one for each {share} in the backlog of {subscription} (project {project}).",
        f"They answer at most {scaling.messages_per_second_max:g} messages a second. If more arrive, the backlog grows.",
    ]
    if order.in_database:
        lines.append(
            f"Not in here: the Secret {sink_secret(order)}, whose key {SINK_KEY} is the sink's URL (docs/streams.md, Deploy)."
        )
    if missing:
        lines.append("{} is not set here: {} is a placeholder.".format(*_PROJECT))
    if settings.pod_patch:
        lines.append("NIGHTSHIFT_POD_PATCH is for the pods of runs, and is not merged here: patch these with kustomize.")
    if order.in_database:
        lines.append(f"Subscribers may reach every address at port {SINK_PORT}; name your database's in the NetworkPolicy.")
    if order.variant.gateway:
        lines.append(
            "Every address may reach the servers: name the gateway's in their NetworkPolicy. The endpoint picker, "
            f"{order.name(SERVER)}-epp, is not in here either."
        )
    return lines
