"""Whether requests are traced: by OpenTelemetry's own variables, and off without them. docs/operate/metrics.md has them all.

OTEL_EXPORTER_OTLP_TRACES_ENDPOINT    where spans go by OTLP over HTTP, in full; or OTEL_EXPORTER_OTLP_ENDPOINT without the path
OTEL_TRACES_SAMPLER_ARG               the share of requests to trace, 0 to 1
TRACEPARENT                           what asked for the work, if it is traced
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nightshift.driver.traces import RequestTraces

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
RATIO: Final = 0.001
"""Of requests, if nothing else is said: of a million a thousand."""


class CannotTrace(ValueError):
    """Traces are on, and cannot be made: a variable is wrong, or OpenTelemetry is missing."""


def traces_of(service: str, attributes: Mapping[str, str]) -> RequestTraces | None:
    """None if they are off. attributes: of every span. Raises CannotTrace."""
    environment = os.environ
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none"
    if off or not any(environment.get(name) for name in ENDPOINTS):
        return None
    ratio = ratio_of(environment.get("OTEL_TRACES_SAMPLER_ARG", ""))
    try:
        # Here, because importing them takes a tenth of a second and 20 MB, which most drivers need not spend.
        from nightshift.driver.traces import RequestTraces
    except ImportError as error:
        raise CannotTrace(f"traces are on, and {error.name} is not installed: install the extra 'driver'") from error
    parent = environment.get("TRACEPARENT")
    return RequestTraces(service, attributes, ratio=ratio, parents=[parent] if parent else [])


def ratio_of(text: str) -> float:
    """The value of OTEL_TRACES_SAMPLER_ARG. Raises CannotTrace."""
    try:
        ratio = float(text) if text else RATIO
    except ValueError:
        ratio = math.nan
    if not 0 <= ratio <= 1:
        raise CannotTrace(f"OTEL_TRACES_SAMPLER_ARG is {text!r}. Write the share of requests to trace, a number from 0 to 1")
    return ratio
