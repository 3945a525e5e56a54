"""Renders a run's JobSet, the same for every runtime.

docs/compute.md says what is in it and why, docs/adr/0011-manifests.md why it is built like this.

Pure, but for the deployment's override file, which is read where the settings name one.
"""

from nightshift.jobset.manifest.names import (
    API_VERSION,
    DRIVER,
    ENGINE_PORT,
    EXCLUSIVE_TOPOLOGY,
    GRACE_SECONDS,
    JOB_LABEL,
    METRICS_PORT,
    NODE_POOL,
    PORT_ENV_ANNOTATION,
    PROFILE_LABEL,
    REPLICATED_JOB,
    RETRIES,
    ROLE_LABEL,
    RUN_LABEL,
    RUN_URL_ANNOTATION,
    SERVER,
    Role,
)
from nightshift.jobset.manifest.patch import PatchError
from nightshift.jobset.manifest.render import render
from nightshift.jobset.manifest.server import server_args
from nightshift.jobset.manifest.text import to_yaml

__all__ = [
    "API_VERSION",
    "DRIVER",
    "ENGINE_PORT",
    "EXCLUSIVE_TOPOLOGY",
    "GRACE_SECONDS",
    "JOB_LABEL",
    "METRICS_PORT",
    "NODE_POOL",
    "PORT_ENV_ANNOTATION",
    "PROFILE_LABEL",
    "REPLICATED_JOB",
    "RETRIES",
    "ROLE_LABEL",
    "RUN_LABEL",
    "RUN_URL_ANNOTATION",
    "SERVER",
    "PatchError",
    "Role",
    "render",
    "server_args",
    "to_yaml",
]
