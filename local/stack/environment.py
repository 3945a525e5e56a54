"""The environment of the stack's processes and of its clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from local.postgres import access
from local.stack.folder import HOST, Folder
from local.stack.kubernetes import STORAGE_VARIABLE, Kubernetes

BUCKET: Final = "nightshift"
PROJECT: Final = "local"
PODS: Final = 2
"""Pods of a night that run at once locally; each takes 2 GiB. A plan with more workers would start engines for nothing."""
WARM: Final = 2
"""Engines of previews that may be warm beside a night, whose pods would wait ten minutes for their place otherwise."""

# A developer's own settings for these programs must not affect the stack.
_FOREIGN: Final = (
    "AIRFLOW",
    "BIGQUERY_",
    "CLOUDSDK_",
    "GCSFS_",
    "GOOGLE_",
    "HF_",
    "NIGHTSHIFT_",
    "OPENLINEAGE_",
    "PUBSUB_",
    "PYTHON",
    "STORAGE_",
    "VIRTUAL_ENV",
    "VLLM_",
)
_OURS: Final = ("NIGHTSHIFT_CACHE",)
"""Where this machine keeps the environments and models that the parts use, too (`local.environments.cache_dir`)."""


def base() -> dict[str, str]:
    """This process's environment, without what would affect the parts, and with what they need if it is bare."""
    kept = {name: value for name, value in os.environ.items() if name in _OURS or not name.startswith(_FOREIGN)}
    kept.setdefault("HOME", str(Path.home()))
    kept.setdefault("PATH", os.defpath)
    # No part of the stack is reached through a company's proxy.
    direct = ",".join(filter(None, [kept.get("NO_PROXY") or kept.get("no_proxy"), HOST, "localhost"]))
    return {**kept, "NO_PROXY": direct, "no_proxy": direct, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}


def storage_host(kubernetes: Kubernetes | None) -> str:
    """Where the storage emulator listens."""
    return kubernetes.gateway if kubernetes else HOST


def storage_url(ports: Mapping[str, int], kubernetes: Kubernetes | None) -> str:
    return f"http://{storage_host(kubernetes)}:{ports['storage']}"


def pubsub_control(ports: Mapping[str, int]) -> str:
    """Where the Pub/Sub emulator takes orders for faults and gives its statistics."""
    return f"http://{HOST}:{ports['pubsub_control']}"


def clients(folder: Folder, ports: Mapping[str, int], kubernetes: Kubernetes | None = None) -> dict[str, str]:
    """What a client of the emulators and of the runtime needs, without the ports of missing parts."""
    environment = {
        "NIGHTSHIFT_BUCKET": BUCKET,
        "NIGHTSHIFT_PROJECT": PROJECT,
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        # Google's clients would otherwise look for a metadata server, which takes seconds.
        "NO_GCE_CHECK": "true",
        # gcsfs asks the emulator for a service that it does not have.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    if kubernetes is None:
        environment |= {"NIGHTSHIFT_RUNTIME": f"local:{folder.runtime}", "NIGHTSHIFT_WORKERS_MAX": str(PODS)}
    else:
        direct = f"{base()['NO_PROXY']},{kubernetes.gateway}"
        environment |= {"NIGHTSHIFT_RUNTIME": "kubernetes", "NIGHTSHIFT_POD_PATCH": str(folder.pod_patch)}
        environment |= {**kubernetes.environment, "NO_PROXY": direct, "no_proxy": direct}
    if "storage" in ports:
        environment[STORAGE_VARIABLE] = storage_url(ports, kubernetes)
    if "bigquery" in ports:
        environment["BIGQUERY_EMULATOR_HOST"] = f"http://{HOST}:{ports['bigquery']}"
        environment["BIGQUERY_STORAGE_EMULATOR_HOST"] = f"{HOST}:{ports['bigquery_grpc']}"
    if "pubsub" in ports:
        environment["PUBSUB_EMULATOR_HOST"] = f"{HOST}:{ports['pubsub']}"
        environment["NIGHTSHIFT_PUBSUB_CONTROL"] = pubsub_control(ports)
    if "postgres" in ports:
        environment["NIGHTSHIFT_SINK_URL"] = access.url(folder.postgres, ports["postgres"])
    return environment
