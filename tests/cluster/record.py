"""Records what a real cluster says of JobSets that end in every way that can be done to them here.

    python -m tests.cluster.record [CASE ...]

writes tests/unit/observations/*.json, which tests/unit/jobset/test_outcome.py judges. The cluster is found as the tests of this
folder find theirs (`conftest.py`). Without CASE it records all; `record_cases.py` says what each does. Some disturb a node, and
so whatever else runs there.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from local.cluster import images
from local.cluster.cluster import STATE_VARIABLE, Cluster
from local.cluster.faults import Faults
from nightshift.jobset.labels import JOBSET_NAME_LABEL
from tests.cluster.kube import OURS, Existing, Kubernetes, Namespace
from tests.cluster.watch import Watch
from tests.unit.recorded import FOLDER, as_text


class Bench:
    """One case's namespace, with a watch on its pods."""

    def __init__(self, namespace: Namespace, watch: Watch) -> None:
        self.namespace = namespace
        self.kubectl = namespace.kubectl
        self.wait_until = namespace.wait_until
        self._watch = watch

    @property
    def faults(self) -> Faults:
        cluster = self.namespace.cluster
        if not isinstance(cluster, Cluster):
            raise SystemExit(f"this case breaks what only a cluster of local.cluster lets us break, not {cluster.kubeconfig}'s")
        return Faults(cluster)

    def create(self, document: dict[str, Any]) -> None:
        for replicated in document.get("spec", {}).get("replicatedJobs", []):
            # Three volumes less to read in each recorded pod.
            replicated["template"]["spec"]["template"]["spec"]["automountServiceAccountToken"] = False
        self.namespace.create(document)

    def pods(self, jobset: str) -> list[dict[str, Any]]:
        """Those of the JobSet, also those that are gone."""
        return [pod for pod in self._watch.objects() if pod["metadata"].get("labels", {}).get(JOBSET_NAME_LABEL) == jobset]

    def jobset(self, name: str) -> dict[str, Any] | None:
        found = self.namespace.get("jobsets")
        return next((each for each in found if each["metadata"]["name"] == name), None)

    def record(self, case: str, jobset: str) -> None:
        """Writes what there is to see of the JobSet now."""
        document = self.jobset(jobset)
        pods = self.pods(jobset)
        jobs = self.namespace.get("jobs", f"{JOBSET_NAME_LABEL}={jobset}")
        uid = document["metadata"]["uid"] if document else ""
        workloads = self.namespace.get("workloads.kueue.x-k8s.io", f"kueue.x-k8s.io/job-uid={uid}") if uid else []
        seen = [*pods, *jobs, *workloads, *([document] if document else [])]
        uids = {each["metadata"]["uid"] for each in seen}
        events = [each for each in self.namespace.get("events") if each["involvedObject"].get("uid") in uids]
        recorded = {
            "jobset": document,
            "jobs": jobs,
            "pods": pods,
            "workload": workloads[0] if workloads else None,
            "events": sorted(events, key=lambda each: (each["lastTimestamp"] or "", each["metadata"]["name"])),
        }
        text = as_text(_trimmed(recorded))
        (FOLDER / f"{case}.json").write_text(text)
        print(f"  {case}: {len(jobs)} Jobs, {len(pods)} pods, {len(events)} events, {len(text) // 1024} KiB", flush=True)


def _trimmed(value: Any) -> Any:
    """Without what only an API server reads."""
    if isinstance(value, dict):
        return {key: _trimmed(each) for key, each in value.items() if key != "managedFields"}
    return [_trimmed(each) for each in value] if isinstance(value, list) else value


@contextmanager
def bench(cluster: Kubernetes, case: str) -> Iterator[Bench]:
    name = f"record-{case}-{uuid.uuid4().hex[:6]}"
    cluster.kubectl("create", "namespace", name)
    namespace = Namespace(cluster, name)
    try:
        namespace.wait_until("its service account", lambda: namespace.get("serviceaccounts"))
        with Watch(namespace) as watch:
            yield Bench(namespace, watch)
    finally:
        # A namespace ends with its pods first, and a Job with backoffLimitPerIndex lets no pod go that it cannot replace
        # any more: it would never end.
        namespace.kubectl("delete", "jobsets", "--all", "--wait=false")
        cluster.kubectl("delete", "namespace", name, "--wait=false")


@contextmanager
def _cluster() -> Iterator[Kubernetes]:
    if state := os.environ.get(STATE_VARIABLE):
        yield Cluster(Path(state))
    elif not OURS:
        yield Existing(Path(os.environ["KUBECONFIG"]))
    else:
        image = images.python(print)
        with tempfile.TemporaryDirectory(prefix="ns-") as folder, Cluster(Path(folder) / "c", images=[image]) as cluster:
            yield cluster


def main() -> None:
    from tests.cluster.record_cases import CASES

    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.record", description="Records tests/unit/observations/*.json."
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    wanted = parser.parse_args().cases or list(CASES)
    if unknown := sorted(set(wanted) - set(CASES)):
        parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    with _cluster() as cluster:
        for name in wanted:
            print(name, flush=True)
            with bench(cluster, name) as case:
                CASES[name](case)


if __name__ == "__main__":
    main()
