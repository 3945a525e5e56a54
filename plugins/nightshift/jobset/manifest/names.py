"""Names and numbers that a manifest shares with whoever reads it: operator, runtimes, tests."""

from __future__ import annotations

from typing import Final, Literal

Role = Literal["owner", "helper"]
"""owner: workers begin at home shards. helper: a further JobSet on the same run, whose workers take what is left anywhere."""

API_VERSION: Final = "jobset.x-k8s.io/v1alpha2"
REPLICATED_JOB: Final = "worker"
DRIVER: Final = "driver"
SERVER: Final = "server"

RUN_LABEL: Final = "nightshift.dev/run"
JOB_LABEL: Final = "nightshift.dev/job"
PROFILE_LABEL: Final = "nightshift.dev/profile"
ROLE_LABEL: Final = "nightshift.dev/role"
RUN_URL_ANNOTATION: Final = "nightshift.dev/run-url"
PORT_ENV_ANNOTATION: Final = "nightshift.dev/port-env"
"""Tells a runtime whose pods share one network which variable carries which port; a cluster does not read it."""
EXCLUSIVE_TOPOLOGY: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NODE_POOL: Final = "cloud.google.com/gke-nodepool"
JOB_INDEX_LABEL: Final = "jobset.sigs.k8s.io/job-index"

ENGINE_PORT: Final = 8000
METRICS_PORT: Final = 9400
PORTS: Final = "engine=ENGINE_PORT,metrics=NIGHTSHIFT_METRICS_PORT"

RETRIES: Final = 6
"""Failures that are counted: of one index in shape A, restarts of all slices in shape C. Disruptions that Kubernetes marks are
not counted; a pod that somebody deletes and a process that is killed are, since nothing tells them from a crash."""
GRACE_SECONDS: Final = 30
"""More than Spot's 15 s: a node that is only drained gives all of it, and the server ends after the driver, out of the same."""
KEEP_FINISHED_SECONDS: Final = 24 * 3600
LOAD_PATIENCE: Final = 3
"""Times the expected load time until the kubelet, or the driver of a slice, gives the server up."""
