"""Names and numbers that a JobSet manifest shares with its readers: operator, runtimes, tests."""

from __future__ import annotations

from typing import Final, Literal

Role = Literal["owner", "helper"]
"""owner: workers start at their home shards. helper: an additional JobSet on the same run, whose workers take any work left."""

REPLICATED_JOB: Final = "worker"
DRIVER: Final = "driver"
DRIVER_PROGRAM: Final = "nightshift.driver"
"""What the driver's container runs, as ``python -m``."""
SERVER: Final = "server"


ENGINE_PORT: Final = 8000
"""Of the first engine; those of others follow it."""
METRICS_PORT: Final = 9400

PROBE_SECONDS: Final = 5
LIVENESS_SECONDS: Final = 30
LIVENESS_FAILURES: Final = 4
"""Two minutes of silence: less than the driver waits for an engine (`nightshift.driver.health`), more than a busy one needs."""

RETRIES: Final = 6
"""Limit on counted failures: of one index if a worker is one host, else restarts of all slices. Disruptions that Kubernetes
marks are not counted. Deleted pods and killed processes are, because nothing distinguishes them from a crash."""
GRACE_SECONDS: Final = 30
"""More than Spot's 15 s: a node that is only drained gives all of it, and the server, ending after the driver, shares it."""
KEEP_FINISHED_SECONDS: Final = 24 * 3600
LOAD_PATIENCE: Final = 3
"""How many times the expected load time passes before the kubelet, or the driver of a slice, gives up on the server."""
