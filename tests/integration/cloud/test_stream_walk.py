"""The path by hand, from an empty project to a stream's first answered message; and with one thing wrong at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.integration.cloud.edits import OTHER, result, second_project, swap, two_projects, without
from tests.integration.cloud.pages import Changes, streams, walked

pytestmark = [pytest.mark.integration, pytest.mark.gate]

ANSWERED: Final = '{"severity": "INFO", "answered": 1}'
"""What the page's last command of streams shows."""


def behind_a_gateway(page: str) -> str:
    gateway = "--engine-url http://10.0.0.5/texts --gateway gateways/inference"
    return swap("nightshift render streams/$STREAM.yaml", f"nightshift render streams/$STREAM.yaml {gateway}")(page)


STREAMS: Final = {
    "add-ons that a flag switches off": (
        Changes(page=swap("HttpLoadBalancing,HorizontalPodAutoscaling,GcePersistentDiskCsiDriver,", "")),
        "the cluster's add-on HorizontalPodAutoscaling is disabled",
    ),
    "queues before Kueue": (
        Changes(page=swap("needs steps 1, 2, 4 to 9,", "needs steps 1, 2, 4 to 7, 9,")),
        'no matches for kind "ResourceFlavor" in version "kueue.x-k8s.io/v1beta2"',
    ),
    "the old list of steps": (
        Changes(page=swap("needs steps 1, 2, 4 to 9,", "needs steps 1, 2, 5 to 7, 9,")),
        "gs://my-project-nightshift not found: 404",
    ),
    "no API of Pub/Sub": (Changes(page=swap(" pubsub.googleapis.com", "")), "pubsub.googleapis.com has not been used"),
    "no API of AlloyDB": (Changes(page=swap(" alloydb.googleapis.com", "")), "alloydb.googleapis.com has not been used"),
    "no topic of dead letters": (
        Changes(page=swap(" $STREAM-dead --project", " --project")),
        "Resource not found (resource=package-texts-dead)",
    ),
    "no policy for dead letters": (
        Changes(page=swap(" --dead-letter-topic=$STREAM-dead --max-delivery-attempts=50", "")),
        "package-texts has no dead-letter policy",
    ),
    "no account of Pub/Sub": (
        Changes(page=without("^gcloud beta services identity create.*\n")),
        "service-123456789012@gcp-sa-pubsub.iam.gserviceaccount.com does not exist",
    ),
    "Pub/Sub may not publish dead letters": (
        Changes(page=without(r"^gcloud pubsub topics add-iam-policy-binding .*--member=\$AGENT.*\n")),
        "gcp-sa-pubsub.iam.gserviceaccount.com may not publish to",
    ),
    "Pub/Sub may not acknowledge them": (
        Changes(page=without(r"^gcloud pubsub subscriptions add-iam-policy-binding .*--member=\$AGENT.*\n")),
        "gcp-sa-pubsub.iam.gserviceaccount.com may not acknowledge what it forwards",
    ),
    "no private service access": (
        Changes(page=without("^gcloud services vpc-peerings connect.*\n")),
        "has no connection for private services access",
    ),
    "no login by IAM": (
        Changes(page=swap(" \\\n  --database-flags=alloydb.iam_authentication=on", "")),
        "the instance has no IAM login",
    ),
    "no user of the database": (
        Changes(page=without("^gcloud alloydb users create.*\n")),
        'password authentication failed for user "nightshift-stream@my-project.iam"',
    ),
    "a user who may not make tables": (
        Changes(page=swap("alloydbiamuser,alloydbsuperuser", "alloydbiamuser")),
        "permission denied for schema public",
    ),
    "no role of the database": (
        Changes(page=swap("for role in alloydb.client alloydb.databaseUser ", "for role in alloydb.client ")),
        "alloydb.databaseUser",
    ),
    "pods may not act as the account": (
        Changes(page=swap("--role=roles/iam.workloadIdentityUser", "--role=roles/iam.serviceAccountUser")),
        "roles/iam.workloadIdentityUser",
    ),
    "no adapter": (
        Changes(
            page=lambda page: without("^kubectl -n custom-metrics.*\n")(without(r"^kubectl apply .*k8s-stackdriver.*\n")(page))
        ),
        "no custom metrics API (external.metrics.k8s.io) registered",
    ),
    "an adapter without a version": (Changes(page=swap("cm-sd-adapter-v0.16.7", "master")), "server reported 404 Not Found"),
    "an adapter without rights": (
        Changes(page=swap("roles/monitoring.viewer", "roles/monitoring.editor")),
        "lacks roles/monitoring.viewer on my-project",
    ),
    "a metric of the wrong project": (
        Changes(
            page=two_projects,
            cloud=second_project,
            rendered=without(r"^ *resource\.labels\.project_id: .*\n"),
        ),
        f"no metrics returned: there is no subscription package-texts in {OTHER}",
    ),
    "a gateway whose backends are asked for /": (
        Changes(
            page=behind_a_gateway,
            rendered=without(r"^apiVersion: networking.gke.io/v1\nkind: HealthCheckPolicy\n(?:(?!---).*\n)*"),
        ),
        "503 no healthy upstream: vLLM answers / with 404",
    ),
    "a gateway in a cluster without its kinds": (
        Changes(page=lambda page: swap(" --gateway-api=standard", "")(behind_a_gateway(page))),
        'no matches for kind "InferencePool" in version "inference.networking.k8s.io/v1"',
    ),
    "no image of the stream": (
        Changes(page=without(r"^docker push \$NIGHTSHIFT_STREAM_IMAGE\n")),
        "stream:0.3.0: manifest unknown",
    ),
}


@pytest.mark.parametrize(
    "changes",
    [Changes(), Changes(page=two_projects, cloud=second_project), Changes(page=behind_a_gateway)],
    ids=["one project", "two projects", "a gateway"],
)
def test_the_page_leads_to_the_first_answered_message(tmp_path: Path, changes: Changes) -> None:
    walk = walked(tmp_path, streams, changes)

    assert (walk.code, walk.error) == (0, "")
    assert walk.out.splitlines()[-1] == ANSWERED


@pytest.mark.parametrize(("changes", "words"), STREAMS.values(), ids=STREAMS)
def test_no_message_is_answered_with(tmp_path: Path, changes: Changes, words: str) -> None:
    assert words in result(walked(tmp_path, streams, changes))
