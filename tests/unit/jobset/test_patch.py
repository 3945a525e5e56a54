"""The deployment's override file: what a platform engineer may change of every pod, and what is said about a bad file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.jobset.manifest.patch import Patch, PatchError
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec

pytestmark = pytest.mark.unit

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "nodeSelector": {"pool": "x", "zone": "y"},
        "tolerations": [{"key": "k"}],
        "containers": [
            {
                "name": "driver",
                "image": "d",
                "command": ["one", "two"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "f"}}}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    },
}


def patched(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "patch.yaml"
    path.write_text(text)
    before = yaml.safe_dump(TEMPLATE)
    result = Patch(str(path)).apply(TEMPLATE)
    assert yaml.safe_dump(TEMPLATE) == before
    return result


def driver(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in result["spec"]["containers"] if each["name"] == "driver")
    return found


class TestMerge:
    def test_environment_is_merged_by_name(self, tmp_path: Path) -> None:
        text = "spec: {containers: [{name: driver, env: [{name: A, value: '2'}, {name: C, value: '3'}]}]}"
        env = driver(patched(tmp_path, text))["env"]

        assert [(each["name"], each.get("value")) for each in env] == [("A", "2"), ("B", None), ("C", "3")]

    def test_a_value_replaces_the_source_of_a_value(self, tmp_path: Path) -> None:
        """Kubernetes refuses a variable that has both."""
        text = "spec: {containers: [{name: driver, env: [{name: B, value: '2'}, {name: A, valueFrom: {fieldRef: {}}}]}]}"
        env = driver(patched(tmp_path, text))["env"]

        assert env == [{"name": "A", "valueFrom": {"fieldRef": {}}}, {"name": "B", "value": "2"}]

    def test_everything_else_stays(self, tmp_path: Path) -> None:
        result = patched(tmp_path, "spec: {containers: [{name: driver, image: other}]}")

        assert driver(result) == {**TEMPLATE["spec"]["containers"][0], "image": "other"}
        assert {**result["spec"], "containers": None} == {**TEMPLATE["spec"], "containers": None}

    def test_volumes_and_mounts_are_added(self, tmp_path: Path) -> None:
        text = """
        spec:
          containers: [{name: driver, volumeMounts: [{name: models, mountPath: /models}]}]
          volumes: [{name: models, persistentVolumeClaim: {claimName: models}}]
        """
        result = patched(tmp_path, text)

        assert [each["name"] for each in result["spec"]["volumes"]] == ["tmp", "models"]
        assert [each["mountPath"] for each in driver(result)["volumeMounts"]] == ["/tmp", "/models"]

    @pytest.mark.parametrize(
        ("field", "rendered", "patch", "merged"),
        [
            (
                "volumeMounts",
                [{"name": "tmp", "mountPath": "/a"}, {"name": "tmp", "mountPath": "/b"}],
                [{"mountPath": "/b", "name": "models"}],
                [{"name": "tmp", "mountPath": "/a"}, {"name": "models", "mountPath": "/b"}],
            ),
            (
                "ports",
                [{"containerPort": 1}, {"containerPort": 2}],
                [{"containerPort": 2, "name": "x"}],
                [{"containerPort": 1}, {"containerPort": 2, "name": "x"}],
            ),
        ],
        ids=["mounts", "ports"],
    )
    def test_an_item_keeps_to_the_merge_key_of_kubernetes(
        self, tmp_path: Path, field: str, rendered: Any, patch: Any, merged: Any
    ) -> None:
        """One volume may be mounted twice, and a port needs no name."""
        path = tmp_path / "patch.yaml"
        path.write_text(yaml.safe_dump({"spec": {"containers": [{"name": "driver", field: patch}]}}))
        template = {"spec": {"containers": [{"name": "driver", field: rendered}]}}

        assert driver(Patch(str(path)).apply(template))[field] == merged

    @pytest.mark.parametrize("field", ["initContainers", "containers", "volumes", "imagePullSecrets"])
    def test_items_of_a_pod_are_merged_by_name(self, tmp_path: Path, field: str) -> None:
        path = tmp_path / "patch.yaml"
        path.write_text(f"spec: {{{field}: [{{name: b, image: new}}]}}")
        template = {"spec": {field: [{"name": "a"}, {"name": "b", "image": "old"}]}}

        assert Patch(str(path)).apply(template)["spec"][field] == [{"name": "a"}, {"name": "b", "image": "new"}]

    def test_null_removes_a_key(self, tmp_path: Path) -> None:
        result = patched(tmp_path, "spec: {nodeSelector: {zone: null}}")

        assert result["spec"]["nodeSelector"] == {"pool": "x"}

    def test_an_item_is_removed_by_its_name(self, tmp_path: Path) -> None:
        text = "spec: {containers: [{name: driver, env: [{name: B, $patch: delete}]}]}"

        assert [each["name"] for each in driver(patched(tmp_path, text))["env"]] == ["A"]

    def test_a_value_from_elsewhere_takes_the_place_of_a_value(self, tmp_path: Path) -> None:
        """Kubernetes refuses a variable with both."""
        secret = "{secretKeyRef: {name: s, key: k}}"
        text = f"spec: {{containers: [{{name: driver, env: [{{name: A, value: null, valueFrom: {secret}}}]}}]}}"

        assert driver(patched(tmp_path, text))["env"][0] == {
            "name": "A",
            "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}},
        }

    @pytest.mark.parametrize(("field", "value"), [("tolerations", "[{key: other}]"), ("tolerations", "[]")])
    def test_lists_without_names_are_replaced(self, tmp_path: Path, field: str, value: str) -> None:
        assert patched(tmp_path, f"spec: {{{field}: {value}}}")["spec"][field] == yaml.safe_load(value)

    def test_a_command_is_replaced(self, tmp_path: Path) -> None:
        assert driver(patched(tmp_path, "spec: {containers: [{name: driver, command: [x]}]}"))["command"] == ["x"]

    def test_a_further_container_has_an_image(self, tmp_path: Path) -> None:
        result = patched(tmp_path, "spec: {containers: [{name: logs, image: i}]}")

        assert [each["name"] for each in result["spec"]["containers"]] == ["driver", "logs"]

    def test_labels(self, tmp_path: Path) -> None:
        assert patched(tmp_path, "metadata: {labels: {team: search}}")["metadata"]["labels"] == {"a": "1", "team": "search"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec: [", "This is not valid YAML"),
        ("- a", "A pod patch has metadata and spec, but this file has no mapping"),
        ("containers: []", "A pod patch has metadata and spec, but this file has containers"),
        (
            "spec: {containers: [{name: drvier, env: []}]}",
            "spec.containers[name=drvier]: No such item; the rendered ones are driver. Write one of these.",
        ),
        ("spec: {containers: [{name: [a]}]}", "spec.containers[0]: The item has no name. Write name: ... to say"),
        ("spec: {containers: [{image: x}]}", "spec.containers[0]: The item has no name. Write name: ... to say"),
        (
            "spec: {volumes: [{name: nope, $patch: delete}]}",
            "spec.volumes[name=nope]: No such item; the rendered ones are tmp. Write one of these.",
        ),
        ("spec: {volumes: [{name: tmp, $patch: replace}]}", "spec.volumes[name=tmp]: $patch is 'replace'"),
        (
            "spec: {nodeSelector: [a]}",
            "spec.nodeSelector: The rendered value is a mapping, but this is a list. Write a mapping.",
        ),
        (
            "spec: {containers: [{name: driver, image: {a: b}}]}",
            "spec.containers[name=driver].image: The rendered value is a single value, but this is a mapping",
        ),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PatchError) as caught:
        patched(tmp_path, text)

    assert str(caught.value).startswith(f"{tmp_path / 'patch.yaml'}: {message}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match=r"absent\.yaml: The file cannot be read: .* Check NIGHTSHIFT_POD_PATCH\."):
        Patch(str(tmp_path / "absent.yaml"))


def test_rendered_pods_are_patched_and_hashed_as_patched(tmp_path: Path) -> None:
    path = tmp_path / "patch.yaml"
    path.write_text("spec: {containers: [{name: driver, env: [{name: STORAGE_EMULATOR_HOST, value: 'http://h'}]}]}")
    plain = Settings(bucket="b", project="p")
    before, after = (
        render(a_spec(), RUN, a_plan(8), settings, name="n") for settings in (plain, replace(plain, pod_patch=str(path)))
    )

    template = after["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert template["spec"]["containers"][0]["env"][-1] == {"name": "STORAGE_EMULATOR_HOST", "value": "http://h"}
    assert before["metadata"]["annotations"] != after["metadata"]["annotations"]
