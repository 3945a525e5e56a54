"""The state of the pretended cloud: one file, one writer at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from local.google_cloud.state import BUCKET, CLUSTER, NODE_POOL, State, full_name, kubernetes_type, load, opened, save

pytestmark = pytest.mark.unit

CLUSTER_NAME = full_name("container", "projects", "p", "locations", "l", "clusters", "c")


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    state = State(seconds=60)
    state.put(BUCKET, full_name("storage", "b"), {"location": "EU"})
    save(state, tmp_path / "state.json")

    assert load(tmp_path / "state.json") == state
    assert json.loads((tmp_path / "state.json").read_text())["resources"] == {
        "storage.googleapis.com/Bucket": {"//storage.googleapis.com/b": {"location": "EU"}}
    }


def test_no_file_is_an_empty_state_and_another_file_is_refused(tmp_path: Path) -> None:
    assert load(tmp_path / "none.json") == State()
    (tmp_path / "other.json").write_text("[]")

    with pytest.raises(ValueError, match="is not a state"):
        load(tmp_path / "other.json")


def lost(path: Path) -> None:
    with opened(path) as state:
        state.of(BUCKET).popitem()
        state.remove(BUCKET, "//storage.googleapis.com/none")


def test_a_block_that_fails_saves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with opened(path) as state:
        state.put(BUCKET, "//storage.googleapis.com/kept", {})

    with pytest.raises(KeyError):
        lost(path)

    assert list(load(path).of(BUCKET)) == ["//storage.googleapis.com/kept"]


def test_a_resource_takes_what_lies_in_it_along() -> None:
    state = State()
    state.put(CLUSTER, CLUSTER_NAME, {})
    state.put(NODE_POOL, f"{CLUSTER_NAME}/nodePools/n", {})
    state.put(NODE_POOL, f"{CLUSTER_NAME}2/nodePools/n", {})
    state.put(kubernetes_type("v1", "Namespace"), f"{CLUSTER_NAME}/k8s/namespaces/n", {})

    state.remove(CLUSTER, CLUSTER_NAME)

    assert {kind: list(each) for kind, each in state.resources.items() if each} == {NODE_POOL: [f"{CLUSTER_NAME}2/nodePools/n"]}


def test_types_of_a_clusters_objects_are_asset_inventorys() -> None:
    assert kubernetes_type("v1", "Pod") == "k8s.io/Pod"
    assert kubernetes_type("jobset.x-k8s.io/v1alpha2", "JobSet") == "jobset.x-k8s.io/JobSet"
