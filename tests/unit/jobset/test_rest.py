"""What a reply that is no success means, by its status and words."""

import json

import pytest

from nightshift.jobset.kubernetes.rest import failure
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound, RequestRefused, RuntimeUnavailable

pytestmark = pytest.mark.unit

UNCOUNTED = 'jobsets "x" is forbidden: status unknown for quota: nightshift, resources: count/jobsets.jobset.x-k8s.io'
FULL = 'jobsets "x" is forbidden: exceeded quota: nightshift, requested: count/jobsets=1, used: count/jobsets=200'
FORBIDDEN = 'jobsets is forbidden: User "x" cannot create resource "jobsets" in API group "jobset.x-k8s.io"'


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (404, "not found", JobSetNotFound),
        (409, "exists", JobSetExists),
        (422, "is invalid", RequestRefused),
        (403, FORBIDDEN, RequestRefused),
        (403, UNCOUNTED, RuntimeUnavailable),
        (403, FULL, RuntimeUnavailable),
        (401, "Unauthorized", RuntimeUnavailable),
        (429, "too many requests", RuntimeUnavailable),
        (503, "", RuntimeUnavailable),
    ],
)
def test_each_refusal_is_final_or_worth_another_try(status: int, said: str, kind: type[Exception]) -> None:
    assert type(failure(status, json.dumps({"message": said}), "create JobSet x")) is kind


def test_a_missing_right_is_told_with_the_role_and_a_full_quota_is_not() -> None:
    assert "k8s/base/airflow.yaml" in str(failure(403, json.dumps({"message": FORBIDDEN}), "create JobSet x"))
    assert "k8s/base/airflow.yaml" not in str(failure(403, json.dumps({"message": FULL}), "create JobSet x"))
