"""The Job that copies a model of the Hub into a bucket, and the account that it runs under."""

from __future__ import annotations

from typing import Any, Final

from nightshift import exits
from nightshift.jobset.identity import digest_name
from nightshift.jobset.manifest.constants import KEEP_FINISHED_SECONDS, RETRIES
from nightshift.jobset.manifest.pod_template import client_of, identity, scratch
from nightshift.run.models.model_copy import folder_of
from nightshift.settings import Settings

ACCOUNT: Final = "nightshift-models"
"""Its own, because no worker may write models."""
TOKEN: Final = {"name": "hugging-face", "key": "token", "optional": True}
"""The Secret with HF_TOKEN, for a private or gated model."""
_COPY: Final = "copy"


def render_copy(repository: str, commit: str, root: str, settings: Settings) -> list[dict[str, Any]]:
    """root: ``gs://BUCKET[/FOLDER]``. The Job has the same name for the same copy, and does nothing if all is there."""
    folder = folder_of(root, repository, commit)
    command = ["python3", "-m", "nightshift.driver.copy_model", repository, commit, folder]
    env = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": TOKEN}}]
    container = client_of(settings, name=_COPY, image=settings.driver_image, command=command, env=env)
    container.pop("ports")  # Nobody calls it.
    pod = {"restartPolicy": "Never", **identity(ACCOUNT), "containers": [container], "volumes": [scratch()]}
    metadata = {"namespace": settings.namespace, "labels": {"app.kubernetes.io/name": ACCOUNT}}
    hopeless = {"containerName": _COPY, "operator": "In", "values": [exits.CONFIG]}
    job = {
        "backoffLimit": RETRIES,
        "ttlSecondsAfterFinished": KEEP_FINISHED_SECONDS,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": hopeless},
            ]
        },
        "template": {"metadata": {"labels": metadata["labels"]}, "spec": pod},
    }
    name = digest_name("copy", repository, commit, folder)
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, **metadata}},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, **metadata}, "spec": job},
    ]
