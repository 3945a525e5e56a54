"""How a deployment's traces reach its pods: by OpenTelemetry's own variables, and vLLM's flag. Nothing if they are off."""

from __future__ import annotations

from typing import Any

from nightshift.jobset.manifest import escaping
from nightshift.settings import Settings


def client_env(settings: Settings) -> list[dict[str, Any]]:
    """Of a program that calls an engine."""
    if not settings.traces:
        return []
    share = {"name": "OTEL_TRACES_SAMPLER_ARG", "value": f"{settings.traced_requests:g}"}
    return [{"name": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "value": escaping.literal(_endpoint(settings))}, share]


def server_env(settings: Settings) -> list[dict[str, Any]]:
    """Of vLLM, which has its endpoint by a flag, and would use gRPC."""
    if not settings.traces:
        return []
    return [
        {"name": "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "value": "http/protobuf"},
        {"name": "OTEL_SERVICE_NAME", "value": "vllm"},
    ]


def server_args(settings: Settings) -> list[str]:
    return [escaping.flag("otlp-traces-endpoint", _endpoint(settings))] if settings.traces else []


def _endpoint(settings: Settings) -> str:
    return f"{settings.traces.rstrip('/')}/v1/traces"
