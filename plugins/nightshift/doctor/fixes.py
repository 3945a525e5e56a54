"""The commands that fix what more than one check can find wrong. Pure."""

from __future__ import annotations

import shlex

from nightshift.settings import Settings

PACKAGE = (
    "make composer-bundle, then step 4 of dist/composer/commands.txt (elsewhere: pip install the wheel in every component)"
)
"""nightshift in every component of Airflow."""


def setting(name: str, value: str) -> str:
    """A variable of every component of Airflow."""
    assigned = shlex.quote(f"{name}={value}")
    return (
        f"gcloud composer environments update ENVIRONMENT --location=LOCATION --update-env-variables={assigned} "
        "(elsewhere: set it for every component of Airflow)"
    )


def bucket_role(bucket: str, role: str, email: str | None) -> str:
    return f"gcloud storage buckets add-iam-policy-binding gs://{bucket} {_granted(role, email)}"


def own_prefix(settings: Settings, member: str, role: str, prefix: str) -> str:
    """Lets a worker create below the prefix only. role: that it has without a condition, and then no more; '' for none."""
    bucket, who = f"gs://{settings.bucket}", shlex.quote(f"--member={member}")
    names = f'resource.name.startsWith("projects/_/buckets/{settings.bucket}/objects/{prefix}")'
    condition = shlex.quote(f"--condition=title=own-prefix,expression={names}")
    add = f"gcloud storage buckets add-iam-policy-binding {bucket} {who} --role=roles/storage.objectCreator {condition}"
    if not role:
        return add
    return f"{add} && gcloud storage buckets remove-iam-policy-binding {bucket} {who} --role={role} --condition=None"


def project_role(project: str, role: str, email: str | None) -> str:
    return f"gcloud projects add-iam-policy-binding {project} {_granted(role, email)}"


def enable(service: str, project: str) -> str:
    return f"gcloud services enable {service} --project={project}"


def _granted(role: str, email: str | None) -> str:
    """email: or the name of a workload's identity, as Cloud Storage's refusals have it, which begins with ``//``."""
    known = email or "ACCOUNT"
    kind = "principal" if known.startswith("//") else "serviceAccount"
    return f"--member={kind}:{known} --role=roles/{role} --condition=None"


def dataset_role(settings: Settings, dataset: str, role: str, email: str | None) -> str:
    """dataset: project.dataset."""
    grant = f"GRANT `roles/{role}` ON SCHEMA `{dataset}` TO 'serviceAccount:{email or 'ACCOUNT'}'"
    return f"bq --location={settings.location} query --use_legacy_sql=false {shlex.quote(grant)}"
