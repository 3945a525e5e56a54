"""Kubernetes' API in front of the agent, by the product's clients and by bare requests: it answers as a cluster does."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import load_kube_config

from local.runtime.refusals import Refusal
from local.runtime.versions import KEPT, Pages, Versions, numbers
from nightshift.jobset.kubernetes.aio import AsyncJobSetApi, WatchExpired
from nightshift.jobset.kubernetes.rbac import RIGHTS
from nightshift.jobset.labels import JOBSET_API_VERSION
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound, RequestRefused
from tests.cluster.runtime import Api
from tests.integration.runtime.agents import AgentProcess
from tests.integration.runtime.manifests import WAIT_FOR_SIGTERM, jobset, sh, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.gate]

NAMESPACE = "nights"
QUICK = sh("echo one; echo two; printf three")
JOBSETS = f"/apis/{JOBSET_API_VERSION}/namespaces/{NAMESPACE}/jobsets"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    found = AgentProcess(tmp_path_factory.mktemp("api"))
    found.start()
    yield found
    found.close()


@pytest.fixture
def api(agent: AgentProcess) -> Api:
    found = Api(agent.kubeconfig)
    found.patience_s = 0.1
    return found


def url(agent: AgentProcess) -> str:
    return str(json.loads(agent.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])


def ask(agent: AgentProcess, method: str, path: str, body: Any = None, content: str = "application/json") -> tuple[int, Any]:
    """Status and JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url(agent)}{path}", data, {"Content-Type": content}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def made(api: Api, name: str, *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return api.create_jobset(NAMESPACE, jobset(name, *(containers or (QUICK,)), **more))


def ended(api: Api, name: str) -> dict[str, Any]:
    """Its only pod, once the JobSet has ended."""
    wait_for(lambda: api.get_jobset(NAMESPACE, name)["status"]["conditions"], "the JobSet's end")
    (pod,) = api.list_pods(NAMESPACE, name)
    return pod


class TestRefusals:
    @pytest.mark.parametrize(
        ("method", "path", "code"),
        [
            ("GET", "/apis/kueue.x-k8s.io", 404),
            ("GET", f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads", 404),
            ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", 404),
            ("GET", f"{JOBSETS}/nobody", 404),
            ("GET", f"{JOBSETS}/nobody/status", 404),
            ("PUT", f"{JOBSETS}/nobody", 405),
            ("POST", PODS, 405),
            ("DELETE", JOBSETS, 405),
            ("GET", f"{JOBSETS}?labelSelector=a%20in%20(b)", 400),
            ("GET", f"{JOBSETS}?fieldSelector=status.phase%3DRunning", 400),
            ("GET", f"{JOBSETS}?limit=two", 400),
            ("GET", f"{JOBSETS}?continue=unknown", 410),
        ],
    )
    def test_what_is_not_served_has_a_status(self, agent: AgentProcess, method: str, path: str, code: int) -> None:
        status, body = ask(agent, method, path)

        assert status == code
        assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", code)
        assert body["message"]

    def test_a_manifest_that_cannot_be_carried_out_is_refused_at_once(self, api: Api) -> None:
        manifest = jobset("refused", QUICK, spec={"coordinator": {"replicatedJob": "worker"}})
        with pytest.raises(RequestRefused, match="coordinator"):
            api.create_jobset(NAMESPACE, manifest)
        with pytest.raises(JobSetNotFound):
            api.get_jobset(NAMESPACE, "refused")

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({"metadata": {"name": "No_Name"}}, "metadata.name: 'No_Name' is not a DNS label"),
            ({"metadata": None}, "metadata.name: Required value"),
            ({"spec": {}}, "spec.replicatedJobs: "),
            ({"spec": {"replicatedJobs": [{"name": "w", "template": []}]}}, "spec.replicatedJobs[0].template: "),
        ],
    )
    def test_what_is_no_jobset_is_invalid(self, agent: AgentProcess, wrong: dict[str, Any], says: str) -> None:
        status, body = ask(agent, "POST", JOBSETS, {**jobset("night", QUICK), **wrong})

        assert (status, body["reason"]) == (422, "Invalid")
        assert says in body["message"]
        assert ask(agent, "GET", f"{JOBSETS}/night")[0] == 404

    @pytest.mark.parametrize(
        "change", [{"kind": "Job"}, {"apiVersion": "v1"}, {"metadata": {"name": "x", "namespace": "other"}}]
    )
    def test_what_does_not_belong_to_the_path_is_a_bad_request(self, agent: AgentProcess, change: dict[str, Any]) -> None:
        status, body = ask(agent, "POST", JOBSETS, {**jobset("x", QUICK), **change})

        assert (status, body["reason"]) == (400, "BadRequest")


class TestChange:
    def test_a_merge_patch_changes_annotations_and_suspend_alone(self, api: Api, agent: AgentProcess) -> None:
        first = made(api, "patched", spec={"suspend": True}, annotations={"a": "b"})
        changed = api.patch_jobset(NAMESPACE, "patched", {"metadata": {"annotations": {"a": None, "c": "d"}}})
        assert changed["metadata"]["annotations"] == {"c": "d"}
        assert changed["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
        assert changed["metadata"]["uid"] == first["metadata"]["uid"]
        assert changed["metadata"]["generation"] == 1

        resumed = api.patch_jobset(NAMESPACE, "patched", {"spec": {"suspend": False}})
        assert resumed["metadata"]["generation"] == 2
        ended(api, "patched")
        assert api.get_jobset(NAMESPACE, "patched")["metadata"]["annotations"] == {"c": "d"}
        patches: tuple[dict[str, Any], ...] = (
            {"spec": {"replicatedJobs": []}},
            {"metadata": {"name": "other"}},
            {"metadata": {"annotations": {"n": 1}}},
        )
        for patch in patches:
            with pytest.raises(RequestRefused, match="invalid"):
                api.patch_jobset(NAMESPACE, "patched", patch)
        status, _ = ask(agent, "PATCH", f"{JOBSETS}/patched", {}, "application/json-patch+json")
        assert status == 415

    def test_preconditions_hold(self, api: Api) -> None:
        first = made(api, "conditions", spec={"suspend": True})
        version, uid = first["metadata"]["resourceVersion"], first["metadata"]["uid"]
        api.patch_jobset(NAMESPACE, "conditions", {"metadata": {"uid": uid, "annotations": {"a": "b"}}})

        with pytest.raises(JobSetExists):
            api.patch_jobset(NAMESPACE, "conditions", {"metadata": {"resourceVersion": version}, "spec": {"suspend": False}})
        with pytest.raises(JobSetExists):
            api.patch_jobset(NAMESPACE, "conditions", {"metadata": {"uid": "another"}})
        with pytest.raises(JobSetExists):
            api.delete_jobset(NAMESPACE, "conditions", uid=uid, resource_version=version)
        api.delete_jobset(NAMESPACE, "conditions", uid=uid)

    def test_only_the_foreground_deletes_and_the_object_says_so_while_pods_drain(self, api: Api, agent: AgentProcess) -> None:
        made(api, "drains", sh("trap 'sleep 3; exit 75' TERM; echo ready; while :; do sleep 0.1; done"))
        wait_for(lambda: [list(_log(api, pod)) == ["ready"] for pod in api.list_pods(NAMESPACE, "drains")], "a pod that runs")
        status, _ = ask(agent, "DELETE", f"{JOBSETS}/drains", {"kind": "DeleteOptions"})
        assert status == 422
        api.delete_jobset(NAMESPACE, "drains")

        metadata = api.get_jobset(NAMESPACE, "drains")["metadata"]
        assert metadata["deletionTimestamp"]
        assert metadata["finalizers"] == ["foregroundDeletion"]
        wait_for(lambda: api.observe(NAMESPACE, "drains").jobset is None, "its end")
        assert api.list_pods(NAMESPACE, "drains") == []

    def test_changes_outlive_the_agent(self, tmp_path: Path) -> None:
        agent = AgentProcess(tmp_path)
        agent.start()
        try:
            first = made(Api(agent.kubeconfig), "kept", spec={"suspend": True})
            before = Api(agent.kubeconfig).patch_jobset(NAMESPACE, "kept", {"metadata": {"annotations": {"a": "b"}}})
            agent.signal(9)
            agent.start()
            api = Api(agent.kubeconfig)
            after = api.get_jobset(NAMESPACE, "kept")
            assert after["metadata"]["uid"] == first["metadata"]["uid"]
            assert after["metadata"]["annotations"] == {"a": "b"}
            assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])
            with pytest.raises(WatchExpired):
                asyncio.run(_first_event(agent, before["metadata"]["resourceVersion"]))
        finally:
            agent.close()


class TestReads:
    def test_lists_come_in_pages_of_one_moment(self, api: Api, agent: AgentProcess) -> None:
        for number in range(3):
            made(api, f"page-{number}", spec={"suspend": True}, annotations={"run": "pages"})
        _, first = ask(agent, "GET", f"{JOBSETS}?limit=2")
        made(api, "page-9", spec={"suspend": True})
        names, page = [each["metadata"]["name"] for each in first["items"]], first
        while token := page["metadata"].get("continue"):
            _, page = ask(agent, "GET", f"{JOBSETS}?limit=2&continue={token}")
            names += [each["metadata"]["name"] for each in page["items"]]

        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        assert first["metadata"]["remainingItemCount"] == len(names) - 2
        assert names == sorted(set(names))
        assert {"page-0", "page-1", "page-2"} <= set(names)
        assert "page-9" not in names

    def test_namespaces_and_selectors_leave_out_the_others(self, api: Api) -> None:
        made(api, "selected")
        pod = ended(api, "selected")

        assert [each["metadata"]["name"] for each in api.list_jobs(NAMESPACE, "selected")] == ["selected-worker-0"]
        assert pod["metadata"]["name"].startswith("selected-worker-0-0-")
        assert api.list_pods("other", "selected") == []
        assert api.list_pods(NAMESPACE, "select") == []

    def test_a_log_is_what_was_written(self, api: Api) -> None:
        made(api, "logged")
        name = ended(api, "logged")["metadata"]["name"]

        assert list(api.read_logs(NAMESPACE, name, "driver")) == ["one", "two", "three"]
        assert list(api.read_logs(NAMESPACE, name, "driver", tail_lines=2)) == ["two", "three"]
        with pytest.raises(RequestRefused, match="not valid"):
            api.read_logs(NAMESPACE, name, "server")
        with pytest.raises(JobSetNotFound):
            api.read_logs(NAMESPACE, "nobody", "driver")

    def test_the_caller_may_do_what_the_product_asks_for(self, api: Api) -> None:
        assert api.whoami() == "local"
        assert all(api.may(NAMESPACE, right) for right in RIGHTS)
        assert api.read("/version")["gitVersion"].startswith("v1.")
        assert [each["version"] for each in api.read("/apis/jobset.x-k8s.io")["versions"]] == ["v1alpha2"]


class TestWatch:
    def test_a_follower_sees_each_change_and_the_end(self, api: Api, agent: AgentProcess) -> None:
        async def watch() -> list[str]:
            seen = []
            async with Client(agent) as client:
                _, version = await client.list_jobset("watched")
                await asyncio.to_thread(made, api, "watched", spec={"suspend": True})
                await asyncio.to_thread(made, api, "unwatched", spec={"suspend": True})
                async for kind, found in client.watch_jobset("watched", version):
                    assert found["metadata"]["name"] == "watched"
                    if kind == "ADDED":
                        await asyncio.to_thread(
                            api.patch_jobset, NAMESPACE, "watched", {"metadata": {"annotations": {"a": "b"}}}
                        )
                    if found["metadata"].get("annotations") == {"a": "b"} and "deletionTimestamp" not in found["metadata"]:
                        await asyncio.to_thread(api.delete_jobset, NAMESPACE, "watched")
                    seen.append(kind)
                    if kind == "DELETED":
                        return seen
            return seen

        seen = asyncio.run(watch())
        assert (seen[0], seen[-1], set(seen[1:-1])) == ("ADDED", "DELETED", {"MODIFIED"})

    def test_a_deleted_pods_last_state_is_in_its_event(self, api: Api, agent: AgentProcess) -> None:
        async def watch() -> dict[str, Any]:
            async with Client(agent) as client:
                _, version = await client.list_pods("leaves")
                asked = False
                await asyncio.to_thread(made, api, "leaves", sh(WAIT_FOR_SIGTERM))
                async for kind, pod in client.watch_pods("leaves", version):
                    if pod["status"]["phase"] == "Running" and not asked:
                        asked = True
                        await asyncio.to_thread(wait_for, lambda pod=pod: list(_log(api, pod)), "that it is ready")
                        await asyncio.to_thread(api.delete_jobset, NAMESPACE, "leaves")
                    if kind == "DELETED":
                        return pod
            raise AssertionError("the watch ended")

        pod = asyncio.run(watch())
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 75

    def test_a_log_is_followed_to_its_end_and_goes_on_after_its_last_line(self, api: Api, agent: AgentProcess) -> None:
        made(api, "follows", sh("for n in 1 2 3 4 5 6; do echo $n; sleep 0.5; done"))
        pod = wait_for(
            lambda: [each for each in api.list_pods(NAMESPACE, "follows") if list(_log(api, each))], "its first line"
        )

        async def lines(since: str, most: int) -> list[tuple[str, str]]:
            found = []
            async with Client(agent) as client:
                async for each in client.follow_log(pod[0]["metadata"]["name"], "driver", since=since):
                    found.append(each)
                    if len(found) == most:
                        break
            return found

        first = asyncio.run(lines("", 3))
        rest = asyncio.run(lines(first[-1][0], 99))
        assert [line for _, line in first + rest] == list("123456")
        assert [at for at, _ in asyncio.run(lines("", 99))] == [at for at, _ in first + rest]
        assert len({at for at, _ in first + rest}) == 6


def test_old_changes_and_pages_expire() -> None:
    versions, pages = Versions(numbers()), Pages()
    begin = versions.version
    for number in range(KEPT + 2):
        versions.publish({"a": {"metadata": {"name": "a"}, "status": number}})
    with pytest.raises(Refusal, match="too old"):
        versions.since(begin)
    assert len(versions.since(versions.version - 5)) == 5
    tokens = [pages.keep(1, []) for _ in range(101)]
    with pytest.raises(Refusal, match="too old"):
        pages.rest(tokens[0])
    assert pages.rest(tokens[-1]) == (1, [])


def _log(api: Api, pod: dict[str, Any]) -> Iterator[str]:
    return api.read_logs(NAMESPACE, pod["metadata"]["name"], "driver")


class Client:
    """The product's asynchronous client of the agent's API."""

    def __init__(self, agent: AgentProcess) -> None:
        self._kubeconfig = str(agent.kubeconfig)

    async def __aenter__(self) -> AsyncJobSetApi:
        configuration = Configuration()
        await load_kube_config(self._kubeconfig, client_configuration=configuration)
        self._client = ApiClient(configuration)
        return AsyncJobSetApi(self._client, NAMESPACE)

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


async def _first_event(agent: AgentProcess, version: str) -> tuple[str, dict[str, Any]]:
    async with Client(agent) as client:
        async for each in client.watch_jobset("kept", version):
            return each
    raise AssertionError("the watch ended")
