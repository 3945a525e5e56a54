"""Names and numbers that a JobSet manifest shares with those who read it: operator, runtimes, tests."""

from __future__ import annotations

from typing import Final, Literal

Role = Literal["owner", "helper"]
"""owner: workers begin at home shards. helper: a further JobSet on the same run, whose workers take what is left anywhere."""

REPLICATED_JOB: Final = "worker"
DRIVER: Final = "driver"
SERVER: Final = "server"


ENGINE_PORT: Final = 8000
METRICS_PORT: Final = 9400
PORTS: Final = "engine=ENGINE_PORT,metrics=NIGHTSHIFT_METRICS_PORT"

RETRIES: Final = 6
"""Failures that are counted: of one index where a worker is one host, else restarts of all slices. Disruptions that Kubernetes
marks are not counted. A pod that somebody deletes and a process that is killed are, since nothing tells them from a crash."""
GRACE_SECONDS: Final = 30
"""More than Spot's 15 s: a node that is only drained gives all of it, and the server ends after the driver, out of the same."""
KEEP_FINISHED_SECONDS: Final = 24 * 3600
LOAD_PATIENCE: Final = 3
"""Times the expected load time until the kubelet, or the driver of a slice, gives the server up."""
