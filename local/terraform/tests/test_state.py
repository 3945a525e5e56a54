"""OpenTofu's state as the stand-ins' state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from local.google_cloud import state as cloud
from local.google_cloud.state import full_name
from local.terraform.state import from_tfstate

pytestmark = pytest.mark.unit

TOPIC = {
    "id": "projects/p/topics/texts",
    "project": "p",
    "name": "texts",
    "kms_key_name": None,
    "message_retention_duration": "604800s",
}


def resource(kind: str, *attributes: dict[str, Any], mode: str = "managed") -> dict[str, Any]:
    return {"mode": mode, "type": kind, "name": "x", "instances": [{"attributes": each} for each in attributes]}


def test_a_resource_has_the_names_of_googles_api() -> None:
    state = from_tfstate({"resources": [resource("google_pubsub_topic", TOPIC)]}, Path())

    assert state.resources == {
        cloud.TOPIC: {full_name("pubsub", "projects/p/topics/texts"): {"messageRetentionDuration": "604800s"}}
    }


def test_grants_are_the_policy_of_what_they_are_on() -> None:
    grant = {"project": "p", "topic": "texts", "role": "roles/pubsub.publisher", "condition": []}
    condition = [{"title": "own", "expression": "true", "description": None}]
    tfstate = {
        "resources": [
            resource(
                "google_pubsub_topic_iam_member",
                {**grant, "member": "user:a@x"},
                {**grant, "member": "user:b@x"},
                {**grant, "member": "user:c@x", "condition": condition},
            ),
            resource("google_pubsub_topic", TOPIC),
        ]
    }

    topic = from_tfstate(tfstate, Path()).get(cloud.TOPIC, full_name("pubsub", "projects/p/topics/texts"))

    assert topic is not None
    assert topic["iamPolicy"]["bindings"] == [
        {"role": "roles/pubsub.publisher", "members": ["user:a@x", "user:b@x"]},
        {"role": "roles/pubsub.publisher", "members": ["user:c@x"], "condition": {"title": "own", "expression": "true"}},
    ]


def test_files_of_objects_are_read_from_the_roots_folder(tmp_path: Path) -> None:
    (tmp_path / "dag.py").write_text("x = 1\n")
    both = [{"content": None, "source": "./dag.py", "name": "dags/dag.py"}, {"content": "y", "source": None, "name": "z"}]
    objects = resource("google_storage_bucket_object", *({**each, "bucket": "b"} for each in both))

    state = from_tfstate({"resources": [objects]}, tmp_path)

    assert {name: each["text"] for name, each in state.of("storage.googleapis.com/Object").items()} == {
        "//storage.googleapis.com/b/objects/dags/dag.py": "x = 1\n",
        "//storage.googleapis.com/b/objects/z": "y",
    }
