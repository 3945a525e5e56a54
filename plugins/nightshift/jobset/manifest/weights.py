"""Where vLLM finds the weights: on the Hub, streamed from a bucket, or in a mounted bucket (Cloud Storage FUSE)."""

from __future__ import annotations

from typing import Any, Final

from nightshift.jobset.manifest import escaping
from nightshift.jobset.manifest.render_request import ServerRequest
from nightshift.spec import JobSpec, StreamSpec

MOUNT_PATH: Final = "/weights"
_MOUNT_OPTIONS: Final = (
    "implicit-dirs",
    "file-cache:max-size-mb:-1",
    "file-cache:enable-parallel-downloads:true",
    "file-cache:cache-file-for-range-read:true",
    "metadata-cache:ttl-secs:-1",
    "metadata-cache:stat-cache-max-size-mb:-1",
    "metadata-cache:type-cache-max-size-mb:-1",
    "metadata-cache:negative-ttl-secs:0",
    "file-system:kernel-list-cache-ttl-secs:-1",
    "read_ahead_kb=1024",
)
"""What Google recommends for weights: each file is fetched once, in parallel, to the node's disk, and never changes
(accelerated-platforms, "AchievingFasterPodStartup"; the read-ahead: GKE's page on the driver's performance)."""


def model_args(spec: JobSpec | StreamSpec, *, mounted: bool = False, commit: str | None = None) -> tuple[str, list[str]]:
    """The model as vLLM takes it, and its flags as words of a manifest. commit: of a model on the Hub, if the run pins one.

    vLLM uses --revision for the tokenizer too (``ModelConfig``, vLLM 0.32), and transformers for the repository's own code. A
    tokenizer of another repository does not have that commit: it keeps the revision that the job names.
    """
    if spec.model.uri.startswith("hf://"):
        flags = [escaping.flag("revision", commit or spec.model.revision)]
        if commit is not None and "tokenizer" in spec.engine.flags:
            flags.append(escaping.flag("tokenizer-revision", spec.model.revision))
        return spec.model.root, flags
    # In a bucket the revision is part of the path.
    return (MOUNT_PATH, []) if mounted else (spec.model.root, [escaping.flag("load-format", "runai_streamer")])


def is_mounted(request: ServerRequest) -> bool:
    return request.settings.weights == "mount" and request.spec.model.uri.startswith("gs://")


def volumes(request: ServerRequest) -> list[dict[str, Any]]:
    if not is_mounted(request):
        return []
    bucket, _, folder = request.spec.model.uri.removeprefix("gs://").partition("/")
    options = ",".join((f"only-dir={folder}", *_MOUNT_OPTIONS))
    # The check of the bucket is one request more for each pod; a wrong name shows when vLLM opens the first file.
    attributes = {"bucketName": bucket, "mountOptions": options, "skipCSIBucketAccessCheck": "true"}
    csi = {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": True, "volumeAttributes": attributes}
    return [{"name": "weights", "csi": csi}]


def mounts(request: ServerRequest) -> list[dict[str, Any]]:
    return [{"name": "weights", "mountPath": MOUNT_PATH, "readOnly": True}] if is_mounted(request) else []


def pod_annotations(request: ServerRequest) -> dict[str, str]:
    """The annotations that make GKE add the container that mounts the bucket."""
    return {"gke-gcsfuse/volumes": "true"} if is_mounted(request) else {}
