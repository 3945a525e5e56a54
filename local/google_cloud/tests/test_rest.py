"""The REST stand-in against Google's own messages, and its refusals in Google's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local.google_cloud import rest
from local.google_cloud import state as types
from local.google_cloud.state import full_name
from tests.google_deployment import (
    AIRFLOW,
    CLUSTER,
    CLUSTERS,
    DATA,
    DATABASE,
    DEAD,
    REGION,
    SUBSCRIPTION,
    TOPIC,
    Deployment,
    healthy,
)

pytestmark = pytest.mark.unit

GETS = {
    "cluster": f"https://container.googleapis.com/v1/{CLUSTER.partition('.com/')[2]}",
    "region": f"https://compute.googleapis.com/compute/v1/projects/{CLUSTERS}/regions/{REGION}",
    "project": f"https://compute.googleapis.com/compute/v1/projects/{CLUSTERS}",
    "subscription": f"https://pubsub.googleapis.com/v1/{SUBSCRIPTION.partition('.com/')[2]}",
    "topic": f"https://pubsub.googleapis.com/v1/{TOPIC.partition('.com/')[2]}",
    "readers": f"https://pubsub.googleapis.com/v1/{DEAD.partition('.com/')[2]}/subscriptions",
    "database": f"https://alloydb.googleapis.com/v1/{DATABASE.partition('.com/')[2]}",
    "instances": f"https://alloydb.googleapis.com/v1/projects/{DATA}/locations/-/clusters/-/instances",
    "users": f"https://alloydb.googleapis.com/v1/{DATABASE.partition('.com/')[2]}/users",
}


@pytest.fixture
def made(tmp_path: Path) -> Deployment:
    return healthy(tmp_path)


def get(made: Deployment, name: str, caller: str = AIRFLOW) -> dict[str, Any]:
    status, document = rest.answer(made.state, caller, "GET", GETS[name])
    assert status == 200, document
    return document


def messages() -> dict[str, Any]:
    """Google's own message for each document."""
    from google.cloud import alloydb_v1, compute_v1, container_v1
    from google.pubsub_v1 import types as pubsub

    return {
        "cluster": container_v1.Cluster,
        "region": compute_v1.Region,
        "project": compute_v1.Project,
        "subscription": pubsub.Subscription,
        "topic": pubsub.Topic,
        "readers": pubsub.ListTopicSubscriptionsResponse,
        "database": alloydb_v1.Cluster,
        "instances": alloydb_v1.ListInstancesResponse,
        "users": alloydb_v1.ListUsersResponse,
    }


@pytest.mark.parametrize("name", GETS)
def test_every_field_and_value_is_one_of_googles_message(made: Deployment, name: str) -> None:
    """A misspelt field, an unknown enum or a wrong type raises."""
    document = get(made, name)

    message = messages()[name].from_json(json.dumps(document), ignore_unknown_fields=False)

    assert message


def test_quotas_are_metrics_of_compute_engine() -> None:
    from google.cloud.compute_v1 import Quota

    assert {*rest.REGION_QUOTAS, *rest.PROJECT_QUOTAS} <= set(Quota.Metric.__members__)


@pytest.mark.parametrize("name", GETS)
def test_without_a_role_it_is_refused_as_google_refuses(made: Deployment, name: str) -> None:
    status, document = rest.answer(made.state, "nobody@acme.iam.gserviceaccount.com", "GET", GETS[name])

    assert status == 403
    error = document["error"]
    reasons = [each["reason"] for each in (*error.get("details", ()), *error.get("errors", ()))]
    assert reasons == (["forbidden"] if "compute.googleapis.com" in GETS[name] else ["IAM_PERMISSION_DENIED"])


@pytest.mark.parametrize("name", GETS)
def test_an_api_that_is_not_enabled_says_so_first(made: Deployment, name: str) -> None:
    service = GETS[name].split("/")[2]
    for project in (DATA, CLUSTERS):
        made.state.remove(types.SERVICE, full_name("serviceusage", "projects", project, "services", service))

    status, document = rest.answer(made.state, "nobody@acme.iam.gserviceaccount.com", "GET", GETS[name])

    [info] = document["error"]["details"]
    assert (status, info["reason"], info["metadata"]["service"]) == (403, "SERVICE_DISABLED", service)


def test_what_is_not_there_is_not_found(made: Deployment) -> None:
    status, document = rest.answer(made.state, AIRFLOW, "GET", f"{GETS['topic']}-gone")

    assert (status, document["error"]["status"]) == (404, "NOT_FOUND")


def test_what_nobody_should_ask_is_an_error_of_the_asker(made: Deployment) -> None:
    with pytest.raises(AssertionError, match="does not know DELETE"):
        rest.answer(made.state, AIRFLOW, "DELETE", GETS["topic"])


def test_a_pool_gets_what_gke_gives_it(made: Deployment) -> None:
    pool = next(each for each in get(made, "cluster")["nodePools"] if each["name"] == "l4-spot")

    assert pool["config"]["workloadMetadataConfig"] == {"mode": "GKE_METADATA"}
    assert (pool["config"]["diskType"], pool["config"]["diskSizeGb"], pool["status"]) == ("pd-balanced", 170, "RUNNING")


def test_a_role_on_the_resource_itself_is_enough(made: Deployment) -> None:
    other = "reader@acme.iam.gserviceaccount.com"
    viewer = {"role": "roles/pubsub.viewer", "members": [f"serviceAccount:{other}"]}
    made.state.of(types.SUBSCRIPTION)[SUBSCRIPTION]["iamPolicy"]["bindings"].append(viewer)

    assert get(made, "subscription", other)["ackDeadlineSeconds"] == 10
    assert rest.answer(made.state, other, "GET", GETS["topic"])[0] == 403


def test_a_subscription_shows_that_its_topic_is_deleted(made: Deployment) -> None:
    made.state.remove(types.TOPIC, TOPIC)
    made.state.remove(types.TOPIC, DEAD)

    found = get(made, "subscription")

    assert (found["topic"], found["deadLetterPolicy"]["deadLetterTopic"]) == ("_deleted-topic_", "_deleted-topic_")
