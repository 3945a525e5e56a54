"""The rendered JobSet: what holds for every worker there is, and whole manifests that a person has read.

``python -m tests.unit.jobset.test_manifest`` writes tests/unit/manifests/ again.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.runtime.expansion import expand
from local.runtime.fields import ManifestError
from local.runtime.spec import read_manifest
from nightshift import exits
from nightshift.jobset.identity import spec_hash
from nightshift.jobset.labels import EXCLUSIVE_TOPOLOGY_ANNOTATION, PROFILE_LABEL, ROLE_LABEL, RUN_LABEL, SPEC_HASH_ANNOTATION
from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.jobset.manifest.ports import environment
from nightshift.jobset.manifest.render import render
from nightshift.jobset.manifest.server import server_args
from nightshift.jobset.manifest.yaml_text import to_yaml
from nightshift.profiles import PROFILES
from nightshift.run.pins import Pins
from nightshift.settings import Settings
from nightshift.spec.values import ENGINE_FLAGS
from tests.builders import RESERVATIONS, RUN, a_plan, a_spec

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parents[1] / "manifests"
SETTINGS = Settings(bucket="runs", project="acme", reservations=RESERVATIONS)
OWN_ACCOUNTS = replace(SETTINGS, service_account="nightshift-{job}")
PLAN = a_plan(rows=64, workers=4)
BUCKET_MODEL = {"name": "m", "uri": "gs://models/org/m", "revision": "r1"}

ONE_HOST: dict[str, dict[str, Any]] = {name: {"profile": name} for name in PROFILES}
SEVERAL: dict[str, dict[str, Any]] = {
    "cpu/2 engines": {"profile": "cpu", "engines": 2},
    "gpu-l4-spot/8 engines": {"profile": "gpu-l4-spot", "engines": 8},
}
SLICES: dict[str, dict[str, Any]] = {
    **{
        f"{name}/4x4": {"profile": name, "topology": "4x4"}
        for name in PROFILES
        if name.startswith("tpu-") and not name.endswith("-flex")
    },
    **{
        f"{name}/2 hosts": {"profile": name, "hosts": 2}
        for name in PROFILES
        if name.startswith(("gpu-h100", "gpu-h200", "gpu-b200"))
    },
}
GOLDEN_CASES: dict[str, dict[str, Any]] = {
    "cpu": {},
    "gpu-l4-spot-queued": {
        "compute": {"profile": "gpu-l4-spot"},
        "queue": "nightly",
        "priority": "nightly-low",
        "engine": {"max_model_len": 512},
    },
    "gpu-h100-any-mounted": {
        "compute": {"profile": "gpu-h100-any", "tensor_parallel": 4},
        "model": {"name": "m", "uri": "gs://models/org/m/r1", "revision": "r1"},
    },
    "tpu-v6e-spot-4x4": {"compute": {"profile": "tpu-v6e-spot", "topology": "4x4"}},
    "gpu-h100-2-engines": {"compute": {"profile": "gpu-h100", "engines": 2}},
    "gpu-l4-spot-own-account": {"compute": {"profile": "gpu-l4-spot"}},
    "gpu-h100-spot-2-hosts": {"compute": {"profile": "gpu-h100-spot", "hosts": 2}},
}


def manifest(settings: Settings = SETTINGS, role: Any = "owner", **changes: Any) -> dict[str, Any]:
    return render(a_spec(**changes), RUN, PLAN, settings, name="night", role=role)


def job_of(rendered: dict[str, Any]) -> dict[str, Any]:
    [replicated] = rendered["spec"]["replicatedJobs"]
    job: dict[str, Any] = replicated["template"]["spec"]
    return job


def pod_of(rendered: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job_of(rendered)["template"]["spec"]
    return pod


def containers_of(rendered: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The server's and the driver's."""
    pod = pod_of(rendered)
    [server], [driver] = pod["initContainers"], pod["containers"]
    assert (server["name"], driver["name"]) == (SERVER, DRIVER)
    return server, driver


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def cache_limit(rendered: dict[str, Any]) -> int:
    """GiB of the volume that the server's cache is on."""
    [volume] = [each for each in pod_of(rendered)["volumes"] if each["name"] == "cache"]
    return int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi"))


def golden() -> Iterator[tuple[Path, str]]:
    for name, changes in GOLDEN_CASES.items():
        settings = replace(SETTINGS, weights="mount") if name.endswith("mounted") else SETTINGS
        settings = OWN_ACCOUNTS if name.endswith("own-account") else settings
        yield GOLDEN / f"{name}.yaml", to_yaml(manifest(settings, **changes))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_whole_manifests(path: Path) -> None:
    assert path.read_text() == dict(golden())[path]


def test_every_case_has_its_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(GOLDEN_CASES)


def test_the_cpu_request_decides_the_threads_of_an_engine_on_the_cpu_alone() -> None:
    """On an accelerator vLLM chooses one thread by itself, and keeps more if it is told to."""
    threads = {
        name: env_of(containers_of(manifest(compute=compute))[0]).get("OMP_NUM_THREADS") for name, compute in ONE_HOST.items()
    }

    assert threads.pop("cpu") == {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1"}}
    assert set(threads.values()) == {None}


def test_an_engine_on_the_cpu_leaves_the_nodes_memory_to_others_unless_the_job_decides() -> None:
    """By itself it would claim 0.92 of the node, and not start beside other pods."""

    def space(compute: dict[str, Any], **flags: Any) -> str | None:
        server = containers_of(manifest(compute=compute, engine__args=flags))[0]
        return env_of(server).get("VLLM_CPU_KVCACHE_SPACE")

    assert {name: space(compute) for name, compute in ONE_HOST.items()} == {**dict.fromkeys(ONE_HOST), "cpu": "2"}
    assert space({"profile": "cpu"}, **{"kv-cache-memory-bytes": 2**30}) is None
    assert space({"profile": "cpu"}, **{"gpu-memory-utilization": 0.5}) is None


@pytest.mark.parametrize(
    "compute", [{"profile": "cpu"}, {"profile": "gpu-h100", "hosts": 2}, {"profile": "tpu-v6e", "topology": "4x4"}]
)
def test_an_engine_without_a_network_of_its_own_is_for_its_machine_alone(compute: dict[str, Any]) -> None:
    """It has no password. In a cluster, the kubelet's probes and the metrics collector call the pod's address."""
    local = replace(SETTINGS, runtime="local:/state")
    in_a_cluster, here = (containers_of(manifest(each, compute=compute))[0]["args"] for each in (SETTINGS, local))

    assert not any(word.startswith("--host") for word in in_a_cluster)
    assert here == [*in_a_cluster, "--host=127.0.0.1"]
    assert "host" in ENGINE_FLAGS, "a job's own flags could undo it"


def of_each(workers: Mapping[str, dict[str, Any]]) -> Callable[[type], type]:
    """Makes each test of a class one test of all these workers: `compute` is each of them in turn."""

    def over_all(check: Callable[[Any, dict[str, Any]], None]) -> Callable[[Any, pytest.Subtests], None]:
        def test(self: Any, subtests: pytest.Subtests) -> None:
            for name, compute in workers.items():
                with subtests.test(name):
                    check(self, compute)

        return test

    def decorate(tests: type) -> type:
        for name, check in list(vars(tests).items()):
            if name.startswith("test_"):
                setattr(tests, name, over_all(check))
        return tests

    return decorate


@of_each({**ONE_HOST, **SEVERAL, **SLICES})
class TestEveryWorker:
    def test_satisfies_the_restricted_pod_security_standard(self, compute: dict[str, Any]) -> None:
        """As kube-apiserver's PodSecurity admission checks it; tests/cluster asks the real one. A TPU's server is root."""
        rendered = manifest(compute=compute)
        pod = pod_of(rendered)
        server, driver = containers_of(rendered)

        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        restricted = [driver] if compute["profile"].startswith("tpu-") else [server, driver]
        for container in restricted:
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["runAsUser"] > 0
            assert "runAsNonRoot" not in security, "the pod's own holds"
        for container in (server, driver):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert not {"privileged", "procMount", "seccompProfile"} & set(container["securityContext"])
            assert "add" not in container["securityContext"].get("capabilities", {})
        assert all(set(volume) - {"name"} <= {"emptyDir", "csi"} for volume in pod["volumes"])
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)

    def test_the_driver_knows_where_its_engine_must_have_the_model_from(self, compute: dict[str, Any]) -> None:
        for model in ({}, {"model": {"name": "m", "uri": "gs://models/m", "revision": "r1"}}):
            for settings in (SETTINGS, replace(SETTINGS, weights="mount")):
                server, driver = containers_of(manifest(settings, compute=compute, **model))
                env = {each["name"]: each.get("value") for each in driver["env"]}
                root = env["NIGHTSHIFT_MODEL_ROOT"]
                assert root in server["args"]

    def test_no_node_is_removed_from_under_a_worker(self, compute: dict[str, Any]) -> None:
        """By the cluster autoscaler, because other nodes would do."""
        template = job_of(manifest(compute=compute))["template"]

        assert template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"

    def test_a_kubelet_puts_no_variable_into_what_others_have_written(self, compute: dict[str, Any]) -> None:
        """It replaces ``$(NAME)`` in commands, arguments and variables, and the engine logs its arguments."""
        secret, odd = "$(HF_TOKEN)", "$(HF_TOKEN) $$(HF_TOKEN) $$ $x $"
        spec = a_spec(
            compute=compute,
            engine__args={"chat-template": odd},
            model__revision=secret,
        )
        rendered = render(spec, RUN, PLAN, Settings(f"b{secret}", "p", reservations=RESERVATIONS), name="night")
        for container in containers_of(rendered):
            held = {
                "HF_TOKEN": "secret",
                **{each["name"]: "1" for each in environment(8)},
                "SLICE": "0",
                "HEAD": "h",
                "JOB_COMPLETION_INDEX": "0",
            }
            words = [*container["command"], *container.get("args", ())]
            seen = [expand(each, held) for each in (*words, *(each.get("value", "") for each in container["env"]))]
            assert not any("secret" in each for each in seen)
            if container["name"] == SERVER:
                assert {f"--chat-template={odd}", f"--revision={secret}"} <= set(seen)
            else:
                assert f"gs://b{secret}/{RUN.prefix}" in seen
            assert [expand(each, held) for each in container["command"]] == container["command"]

    def test_asks_for_the_disk_that_its_cache_may_fill(self, compute: dict[str, Any]) -> None:
        for pins, weights in ((Pins(), a_spec(compute=compute).compute.worker().weights_gib_max), (Pins(weights_bytes=1), 1)):
            rendered = render(a_spec(compute=compute), RUN, PLAN, SETTINGS, name="night", pins=pins)
            server, driver = containers_of(rendered)

            assert cache_limit(rendered) == weights + 8
            assert server["resources"]["requests"]["ephemeral-storage"] == f"{weights + 8 + 2}Gi"
            assert driver["resources"]["requests"]["ephemeral-storage"] == "2Gi"
            assert {"name": "cache", "mountPath": "/cache"} in server["volumeMounts"]
            assert env_of(server)["HF_HOME"].startswith("/cache/")
            assert env_of(server)["VLLM_CACHE_ROOT"].startswith("/cache/")

    def test_carries_no_token_and_no_service_variables(self, compute: dict[str, Any]) -> None:
        pod = pod_of(manifest(compute=compute))

        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False

    def test_only_the_server_has_the_accelerators(self, compute: dict[str, Any]) -> None:
        server, driver = containers_of(manifest(compute=compute))

        worker = a_spec(compute=compute).compute.worker()
        devices = {key: value for key, value in server["resources"]["limits"].items() if "/" in key or "." in key}
        assert [int(count) for count in devices.values()] == ([worker.accelerators] if worker.accelerators else [])
        assert devices.items() <= server["resources"]["requests"].items()
        assert set(driver["resources"]["limits"]) == {"memory"}

    def test_disruptions_are_looked_at_before_exit_codes(self, compute: dict[str, Any]) -> None:
        rules = job_of(manifest(compute=compute))["podFailurePolicy"]["rules"]

        assert [set(rule) - {"action"} for rule in rules] == [{"onPodConditions"}, {"onExitCodes"}]
        assert rules[1]["onExitCodes"] == {"containerName": DRIVER, "operator": "In", "values": [exits.CONFIG]}

    def test_says_whose_it_is(self, compute: dict[str, Any]) -> None:
        rendered = manifest(compute=compute)

        for labels in (rendered["metadata"]["labels"], job_of(rendered)["template"]["metadata"]["labels"]):
            assert (labels[RUN_LABEL], labels[PROFILE_LABEL], labels[ROLE_LABEL]) == (RUN.run_id, compute["profile"], "owner")
        assert rendered["metadata"]["annotations"][SPEC_HASH_ANNOTATION] == spec_hash(rendered)

    def test_is_plain_json(self, compute: dict[str, Any]) -> None:
        rendered = manifest(compute=compute)

        assert yaml.safe_load(to_yaml(rendered)) == rendered


@of_each({**ONE_HOST, **SEVERAL})
class TestOneHost:
    def test_an_index_for_each_worker_and_no_restarts_of_the_set(self, compute: dict[str, Any]) -> None:
        rendered = manifest(compute=compute)
        job = job_of(rendered)

        assert (job["completions"], job["parallelism"], job["backoffLimitPerIndex"] > 0) == (4, 4, True)
        assert [rule["action"] for rule in job["podFailurePolicy"]["rules"]] == ["Ignore", "FailIndex"]
        assert "failurePolicy" not in rendered["spec"]

    def test_the_driver_waits_for_the_server(self, compute: dict[str, Any]) -> None:
        server, _ = containers_of(manifest(compute=compute))
        probe = server["startupProbe"]

        patience = probe["periodSeconds"] * probe["failureThreshold"]
        assert patience == 3 * a_spec(compute=compute).compute.worker().load_seconds * compute.get("engines", 1)
        assert server["restartPolicy"] == "Always"

    def test_the_local_runtime_takes_it(self, compute: dict[str, Any]) -> None:
        assert read_manifest(manifest(compute=compute)).job.completions == 4


@of_each(SEVERAL)
class TestSeveralEngines:
    def test_the_driver_knows_each_by_its_own_port(self, compute: dict[str, Any]) -> None:
        server, driver = containers_of(manifest(compute=compute))
        numbers = {each["name"]: str(each["containerPort"]) for each in server["ports"]}
        local = job_of(manifest(compute=compute))["template"]["metadata"]["annotations"]["nightshift.dev/port-env"]
        variables = dict(pair.split("=") for pair in local.split(","))

        for container in (server, driver):
            assert {port: env_of(container)[variables[port]] for port in numbers} == numbers
        held = env_of(driver)
        urls = expand(held["ENGINE_URL"], {name: value for name, value in held.items() if isinstance(value, str)}).split(",")
        assert urls == [f"http://127.0.0.1:{8000 + engine}" for engine in range(compute["engines"])]
        assert expand(server["args"][0], env_of(server)).split(",") == list(numbers.values())
        assert not any(word.startswith("--port") for word in server["args"])

    def test_each_has_an_equal_part_of_the_memory(self, compute: dict[str, Any]) -> None:
        rendered = manifest(compute=compute)
        server, _ = containers_of(rendered)
        [memory] = [each for each in pod_of(rendered)["volumes"] if each["name"] == "shared-memory"]
        parts = {"cpu": "--kv-cache-memory-bytes=1073741824", "gpu-l4-spot": "--gpu-memory-utilization=0.112"}

        assert parts[compute["profile"]] in server["args"]
        assert "VLLM_CPU_KVCACHE_SPACE" not in env_of(server)
        assert memory["emptyDir"]["sizeLimit"] == f"{2 * compute['engines']}Gi"

    def test_the_last_one_is_waited_for_and_no_kubelet_ends_all_for_one(self, compute: dict[str, Any]) -> None:
        server, _ = containers_of(manifest(compute=compute))

        assert server["startupProbe"]["httpGet"]["port"] == server["ports"][-1]["name"]
        assert "livenessProbe" not in server


@of_each(SLICES)
class TestSlices:
    def test_a_job_for_each_slice_and_an_index_for_each_host(self, compute: dict[str, Any]) -> None:
        rendered = manifest(compute=compute)
        job = job_of(rendered)

        hosts = a_spec(compute=compute).compute.worker().hosts
        assert rendered["spec"]["replicatedJobs"][0]["replicas"] == 4
        assert (job["completions"], job["parallelism"]) == (hosts, hosts)
        assert rendered["metadata"]["annotations"][EXCLUSIVE_TOPOLOGY_ANNOTATION] == "cloud.google.com/gke-nodepool"

    def test_host_0_decides_and_one_failed_host_fails_its_slice(self, compute: dict[str, Any]) -> None:
        job = job_of(manifest(compute=compute))

        assert job["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
        assert job["backoffLimit"] == 0
        assert {rule["action"] for rule in job["podFailurePolicy"]["rules"]} == {"FailJob"}

    def test_everybody_finds_the_head_of_his_own_slice(self, compute: dict[str, Any]) -> None:
        server, driver = containers_of(manifest(compute=compute))

        names = list(env_of(server))
        assert env_of(server)["HEAD"] == "night-worker-$(SLICE)-0.night"
        # Kubernetes expands only what is declared before.
        assert names.index("SLICE") < names.index("HEAD")
        assert env_of(driver)["NIGHTSHIFT_SHARD"] == env_of(server)["SLICE"]

    def test_the_driver_itself_waits_for_the_engine(self, compute: dict[str, Any]) -> None:
        server, driver = containers_of(manifest(compute=compute))

        assert not {"startupProbe", "livenessProbe"} & set(server)
        assert int(env_of(driver)["NIGHTSHIFT_ENGINE_WAIT_S"]) == 3 * a_spec(compute=compute).compute.worker().load_seconds

    def test_the_local_runtime_refuses_it_by_name(self, compute: dict[str, Any]) -> None:
        with pytest.raises(ManifestError, match="replicas"):
            read_manifest(manifest(compute=compute))


class TestSliceRestarts:
    """What JobSet does about a failed Job: its controller matches the words of the Job's failure (Kubernetes 1.36)."""

    MESSAGES: dict[str, dict[str, str | None]] = {  # noqa: RUF012 - a table
        "PodFailurePolicy": {
            f"Container driver for pod n/p failed with exit code {exits.CONFIG} matching FailJob rule at index 1": "FailJobSet",
            "Pod n/p has condition DisruptionTarget matching FailJob rule at index 0": "RestartJobSetAndIgnoreMaxRestarts",
        },
        "DeadlineExceeded": {"Job was active longer than specified deadline": "FailJobSet"},
        "BackoffLimitExceeded": {"Job has reached the specified backoff limit": None},
    }

    @pytest.mark.parametrize(
        ("reason", "message", "action"),
        [(reason, message, action) for reason, cases in MESSAGES.items() for message, action in cases.items()],
    )
    def test_rule(self, reason: str, message: str, action: str | None) -> None:
        policy = manifest(compute=SLICES["gpu-h100/2 hosts"])["spec"]["failurePolicy"]

        matching = [
            rule["action"]
            for rule in policy["rules"]
            if reason in rule["onJobFailureReasons"]
            and any(re.search(pattern, message) for pattern in rule.get("onJobFailureMessagePatterns", [""]))
        ]
        # Without a rule the set restarts, and that counts.
        assert matching[:1] == ([action] if action else [])
        assert policy["maxRestarts"] > 0

    @pytest.mark.parametrize("compute", [SLICES["gpu-h100/2 hosts"], SLICES["tpu-v6e/4x4"]], ids=["gpu", "tpu"])
    def test_the_launcher_is_a_program_that_a_shell_reads(self, compute: dict[str, Any]) -> None:
        server, _ = containers_of(manifest(compute=compute))

        done = subprocess.run(["sh", "-n", "-c", server["command"][2]], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.parametrize(("host", "headless"), [("0", False), ("1", True)])
    def test_all_but_the_head_are_headless(self, tmp_path: Path, host: str, headless: bool) -> None:
        server, _ = containers_of(manifest(compute=SLICES["gpu-h100/2 hosts"]))
        fake = tmp_path / "python3"
        fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        fake.chmod(0o755)

        done = subprocess.run(
            [*server["command"], *server["args"]],
            env={"PATH": f"{tmp_path}:/bin:/usr/bin", "JOB_COMPLETION_INDEX": host},
            capture_output=True,
            text=True,
            check=True,
        )
        words = done.stdout.splitlines()
        assert words[:4] == ["-m", "vllm.entrypoints.cli.main", "serve", "org/m"]
        assert ("--headless" in words) == headless


class TestHelper:
    def test_helps_on_another_profile_and_is_told_so(self) -> None:
        spec = a_spec(compute__profile="gpu-l4-spot")
        helper = render(spec, RUN, PLAN, SETTINGS, name="night-h", profile="gpu-l4", role="helper", workers=2)
        owner = render(spec, RUN, PLAN, SETTINGS, name="night")

        assert env_of(containers_of(helper)[1])["NIGHTSHIFT_ROLE"] == "helper"
        assert "NIGHTSHIFT_ROLE" not in env_of(containers_of(owner)[1])
        assert (helper["metadata"]["labels"][PROFILE_LABEL], helper["metadata"]["labels"][ROLE_LABEL]) == ("gpu-l4", "helper")
        assert job_of(helper)["completions"] == 2
        assert "cloud.google.com/gke-spot" not in pod_of(helper)["nodeSelector"]
        assert spec_hash(helper) != spec_hash(owner)

    def test_a_profile_that_cannot_be_so_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"compute\.topology: gpu-l4 is a GPU"):
            render(a_spec(compute=SLICES["tpu-v6e/4x4"]), RUN, PLAN, SETTINGS, name="night", profile="gpu-l4")


class TestDisk:
    """What the size of the model decides; docs/operate/compute.md has the rule."""

    @pytest.mark.parametrize(
        ("size", "gib"),
        [(1, 1), (1 << 30, 1), ((1 << 30) + 1, 2), (140_000_000_000, 131)],
        ids=["1 B", "1 GiB", "more", "140 GB"],
    )
    def test_a_size_that_is_known_is_rounded_up(self, size: int, gib: int) -> None:
        rendered = render(a_spec(), RUN, PLAN, SETTINGS, name="night", pins=Pins(weights_bytes=size))

        assert cache_limit(rendered) == gib + 8

    def test_what_the_job_says_goes_first(self) -> None:
        spec = a_spec(compute={"profile": "gpu-h100", "hosts": 2, "weights_gib": 400})

        assert cache_limit(render(spec, RUN, PLAN, SETTINGS, name="night", pins=Pins(weights_bytes=1))) == 408

    @pytest.mark.parametrize(
        ("compute", "gib"),
        [
            ({"profile": "cpu"}, 8),
            ({"profile": "gpu-l4"}, 24),
            ({"profile": "gpu-h100-spot", "tensor_parallel": 4}, 320),
            ({"profile": "gpu-h200-spot", "hosts": 2}, 2256),
            ({"profile": "tpu-v6e"}, 128),
            ({"profile": "tpu-v5e", "topology": "4x4"}, 256),
        ],
        ids=str,
    )
    def test_else_a_worker_holds_no_more_than_its_memory(self, compute: dict[str, Any], gib: int) -> None:
        assert cache_limit(manifest(compute=compute)) == gib + 8

    def test_what_is_streamed_from_a_bucket_needs_no_disk(self) -> None:
        rendered = manifest(model=BUCKET_MODEL, compute={"profile": "gpu-h100", "hosts": 2})

        assert cache_limit(rendered) == 8
        assert not [name for name in job_of(rendered)["template"]["metadata"]["annotations"] if "gcsfuse" in name]
        assert "gke-gcsfuse-cache" not in {each["name"] for each in pod_of(rendered)["volumes"]}

    def test_what_is_mounted_lies_in_the_mounts_own_cache(self) -> None:
        mounted = replace(SETTINGS, weights="mount")
        spec = a_spec(model=BUCKET_MODEL, compute__profile="gpu-l4")
        rendered = render(spec, RUN, PLAN, mounted, name="night", pins=Pins(weights_bytes=16 << 30))

        assert cache_limit(rendered) == 8
        [own] = [each for each in pod_of(rendered)["volumes"] if each["name"] == "gke-gcsfuse-cache"]
        assert own["emptyDir"] == {"sizeLimit": "18Gi"}
        server, _ = containers_of(rendered)
        # In the template, so that Kueue counts it: GKE's container is only in pods.
        assert server["resources"]["requests"]["ephemeral-storage"] == f"{8 + 18 + 2}Gi"

    def test_what_mounts_a_bucket_is_not_held_to_the_defaults_of_its_driver(self) -> None:
        """A quarter of a CPU and 256 MiB, for tens of GB."""
        rendered = manifest(replace(SETTINGS, weights="mount"), model=BUCKET_MODEL, compute__profile="gpu-l4")
        annotations = job_of(rendered)["template"]["metadata"]["annotations"]

        assert {name.removeprefix("gke-gcsfuse/"): value for name, value in annotations.items() if "gcsfuse" in name} == {
            "volumes": "true",
            **dict.fromkeys(("cpu-limit", "memory-limit", "ephemeral-storage-limit"), "0"),
            "cpu-request": "500m",
            "memory-request": "1Gi",
            "ephemeral-storage-request": "0",
        }
        [weights] = [each for each in pod_of(rendered)["volumes"] if each["name"] == "weights"]
        assert weights["csi"]["volumeAttributes"]["skipCSIBucketAccessCheck"] == "true"

    def test_on_the_local_runtime_nothing_is_sent_to_a_volume(self) -> None:
        server, _ = containers_of(manifest(replace(SETTINGS, runtime="local:/state")))

        assert not {"HF_HOME", "VLLM_CACHE_ROOT"} & set(env_of(server))

    def test_the_shape_of_the_disk_is_no_part_of_the_runs_identity(self) -> None:
        assert a_spec(compute__weights_gib=9).semantic() == a_spec().semantic()


class TestServerArgs:
    def test_parallelism(self) -> None:
        args = server_args(a_spec(compute={"profile": "gpu-h200-spot", "tensor_parallel": 4, "pipeline_parallel": 2}))

        assert {"--tensor-parallel-size=4", "--pipeline-parallel-size=2"} <= set(args)

    def test_one_accelerator_needs_no_word(self) -> None:
        assert not [word for word in server_args(a_spec(compute__profile="gpu-l4")) if "parallel-size" in word]

    def test_the_users_flags_come_last_and_win(self) -> None:
        args = server_args(a_spec(engine__args={"enforce-eager": True, "enable-prefix-caching": False, "seed": 7}))

        assert args[-3:] == ["--enforce-eager", "--no-enable-prefix-caching", "--seed=7"]

    def test_a_flag_and_its_value_are_one_word(self) -> None:
        """A text that begins with dashes would else be another flag: another address, another model, another revision."""
        own = {"enable-log-requests": "--host=0.0.0.0", "hf-overrides": "--uds=/s", "chat-template": ""}
        args = server_args(a_spec(engine__args=own))

        assert args[-3:] == ["--enable-log-requests=--host=0.0.0.0", "--hf-overrides=--uds=/s", "--chat-template="]
        assert all(word.startswith("--") for word in args[1:])

    def test_a_list_is_several_words(self) -> None:
        args = server_args(a_spec(engine__args={"cudagraph-capture-sizes": [1, 2, 4], "lora-modules": ["a=b/c"]}))

        assert args[-5:] == ["--cudagraph-capture-sizes", "1", "2", "4", "--lora-modules=a=b/c"]


class TestPins:
    """What the run pinned when it was opened goes before what job and deployment say now."""

    PINS = Pins(commit="c" * 40, server_image="vllm@sha256:1", tpu_server_image="tpu@sha256:2", cpu_server_image="cpu@sha256:3")

    def rendered(self, **changes: Any) -> dict[str, Any]:
        settings = replace(SETTINGS, server_image="vllm:new", tpu_server_image="tpu:new")
        return render(a_spec(**changes), RUN, PLAN, settings, name="night", pins=self.PINS)

    @pytest.mark.parametrize("compute", [{"profile": "cpu"}, *SLICES.values()])
    def test_every_engine_loads_the_commit(self, compute: dict[str, Any]) -> None:
        args = containers_of(self.rendered(compute=compute))[0]["args"]

        assert f"--revision={'c' * 40}" in args
        assert env_of(containers_of(self.rendered(compute=compute))[1])["NIGHTSHIFT_MODEL_REVISION"] == "c" * 40
        assert not any("r1" in word for word in args)

    @pytest.mark.parametrize(
        ("profile", "image"), [("gpu-l4", "vllm@sha256:1"), ("tpu-v6e", "tpu@sha256:2"), ("cpu", "cpu@sha256:3")]
    )
    def test_a_new_image_does_not_reach_an_open_run(self, profile: str, image: str) -> None:
        assert containers_of(self.rendered(compute__profile=profile))[0]["image"] == image

    def test_a_run_that_pinned_no_image_for_cpus_keeps_the_one_that_it_had(self) -> None:
        opened_before = replace(self.PINS, cpu_server_image=None)

        assert (
            containers_of(render(a_spec(), RUN, PLAN, SETTINGS, name="night", pins=opened_before))[0]["image"]
            == "vllm@sha256:1"
        )

    def test_a_tokenizer_of_another_repository_keeps_the_revision_that_the_job_names(self) -> None:
        """vLLM would otherwise look for the model's commit there."""
        own = server_args(a_spec(engine__args={"tokenizer": "org/t"}), commit="c" * 40)

        assert "--tokenizer-revision=r1" in own
        assert "--tokenizer-revision=r1" not in server_args(a_spec(), commit="c" * 40)
        assert "--tokenizer-revision=r1" not in server_args(a_spec(engine__args={"tokenizer": "org/t"}))

    def test_a_run_that_pins_nothing_is_rendered_by_the_jobs_words(self) -> None:
        assert render(a_spec(), RUN, PLAN, SETTINGS, name="night", pins=Pins.of({"spec": {}})) == manifest()


class TestSettings:
    def test_weights_are_mounted_where_the_deployment_says_so(self) -> None:
        model = {"name": "m", "uri": "gs://models/org/m", "revision": "r1"}
        mounted = manifest(replace(SETTINGS, weights="mount"), model=model)
        streamed = manifest(model=model)

        [volume] = [each for each in pod_of(mounted)["volumes"] if each["name"] == "weights"]
        assert volume["csi"]["volumeAttributes"]["bucketName"] == "models"
        assert "only-dir=org/m" in volume["csi"]["volumeAttributes"]["mountOptions"].split(",")
        assert job_of(mounted)["template"]["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
        assert containers_of(mounted)[0]["args"][0] == "/weights"
        # Its files are compared instead (`nightshift.run.models.weights`).
        assert "NIGHTSHIFT_MODEL_REVISION" not in env_of(containers_of(mounted)[1])
        assert containers_of(streamed)[0]["args"][:2] == ["gs://models/org/m", "--load-format=runai_streamer"]

    def test_a_model_of_the_hub_is_never_mounted(self) -> None:
        assert manifest(replace(SETTINGS, weights="mount")) == manifest()

    def test_pull_policy_and_priority_class(self) -> None:
        rendered = manifest(replace(SETTINGS, image_pull_policy="Never", priority_class="low"))

        assert {container["imagePullPolicy"] for container in containers_of(rendered)} == {"Never"}
        assert pod_of(rendered)["priorityClassName"] == "low"
        assert "priorityClassName" not in pod_of(manifest())

    def test_each_job_may_have_an_account_of_its_own(self) -> None:
        assert pod_of(manifest())["serviceAccountName"] == "nightshift-worker"
        own = manifest(replace(SETTINGS, service_account="nightshift-{job}"))
        assert pod_of(own)["serviceAccountName"] == f"nightshift-{RUN.job}"

    def test_a_tpu_has_its_own_image(self) -> None:
        settings = replace(SETTINGS, tpu_server_image="registry/tpu:1")

        assert containers_of(manifest(settings, compute__profile="tpu-v6e"))[0]["image"] == "registry/tpu:1"

    def test_a_cpu_has_its_own_image_except_where_an_image_is_only_a_name(self) -> None:
        settings = replace(SETTINGS, cpu_server_image="registry/cpu:1")

        assert containers_of(manifest(settings))[0]["image"] == "registry/cpu:1"
        local = containers_of(manifest(replace(settings, runtime="local:/state")))[0]["image"]
        assert local == containers_of(manifest(settings, compute__profile="gpu-l4"))[0]["image"] == SETTINGS.server_image

    def test_queue_and_priority_are_the_jobsets(self) -> None:
        labels = manifest(queue="nightly", priority="low")["metadata"]["labels"]

        assert (labels["kueue.x-k8s.io/queue-name"], labels["kueue.x-k8s.io/priority-class"]) == ("nightly", "low")
        assert not [label for label in manifest()["metadata"]["labels"] if "kueue" in label]


class TestCompileCache:
    """What an engine compiles is fetched before it starts, and left by its driver."""

    def key(self, settings: Settings = OWN_ACCOUNTS, **changes: Any) -> Any:
        """None if it is not kept; the same in both containers."""
        rendered = manifest(settings, **{"compute__profile": "gpu-l4-spot", **changes})
        *fetching, server = pod_of(rendered)["initContainers"]
        [driver] = pod_of(rendered)["containers"]
        assert server["name"] == SERVER
        keys = {env_of(each).get("ENGINE_CACHE_KEY") for each in (*fetching, driver)}
        mounted = [each for each in driver["volumeMounts"] if each["name"] == "cache"]
        assert len(keys) == 1
        assert bool(fetching) == bool(mounted) == (keys != {None})
        return keys.pop()

    def test_only_where_no_other_job_can_write_it(self) -> None:
        assert self.key()
        assert self.key(SETTINGS) is None

    @pytest.mark.parametrize(
        "changes",
        [
            {"engine__args": {"enforce-eager": True}},
            {"engine__args": {"enforce_eager": True}},
            {"compute": {"profile": "gpu-h100-spot", "hosts": 2}},
            {"compute": {"profile": "tpu-v6e-spot", "topology": "1x1"}},
        ],
    )
    def test_not_for_an_engine_that_does_not_compile_or_does_it_otherwise(self, changes: dict[str, Any]) -> None:
        if "compute" in changes:
            changes = {"compute__profile": changes["compute"]["profile"], **changes}
        assert self.key(**changes) is None

    def test_another_engine_has_another_key(self) -> None:
        seen = {
            self.key(),
            self.key(replace(OWN_ACCOUNTS, server_image="vllm/vllm-openai:v9")),
            self.key(compute__profile="gpu-h100-spot"),
            self.key(compute__tensor_parallel=2),
            self.key(engine__args={"seed": 7}),
            self.key(engine__max_num_seqs=9),
            self.key(model__revision="other"),
        }
        assert len(seen) == 7
        assert self.key() == self.key(compute__profile="gpu-l4") == self.key(deadline="3h"), "how it is bought, and when due"

    def test_all_are_the_servers_user_and_the_driver_only_reads(self) -> None:
        """Some of vLLM's files are for their owner only."""
        [fetching, server], [driver] = (
            pod_of(manifest(OWN_ACCOUNTS))["initContainers"],
            pod_of(manifest(OWN_ACCOUNTS))["containers"],
        )

        contexts = [each["securityContext"] for each in (fetching, server, driver)]
        assert {(each["runAsUser"], each["runAsGroup"]) for each in contexts} == {(2000, 0)}
        assert fetching["securityContext"]["readOnlyRootFilesystem"]
        assert env_of(fetching)["VLLM_CACHE_ROOT"] == env_of(server)["VLLM_CACHE_ROOT"] == env_of(driver)["VLLM_CACHE_ROOT"]
        assert {"name": "cache", "mountPath": "/cache", "readOnly": True} in driver["volumeMounts"]

    def test_the_local_runtime_runs_it(self) -> None:
        """A mount has no effect there: the images' environment says where the cache is."""
        rendered = manifest(replace(OWN_ACCOUNTS, runtime="local:/state"))

        assert [each.name for each in read_manifest(rendered).pod.init] == ["compile-cache", SERVER]
        assert "VLLM_CACHE_ROOT" not in env_of(pod_of(rendered)["initContainers"][0])


def test_the_hash_is_of_what_pods_do() -> None:
    rendered = manifest()

    assert spec_hash({**rendered, "metadata": {}}) == spec_hash(rendered)
    assert spec_hash(manifest(deadline="3h")) != spec_hash(rendered)


def test_a_run_without_rows_has_no_jobset() -> None:
    with pytest.raises(ValueError, match="has no rows"):
        render(a_spec(), RUN, a_plan(0), SETTINGS, name="night")


if __name__ == "__main__":
    for path, text in golden():
        path.write_text(text)
