"""Runs of some hundred rows on the cluster: the real operator, its trigger, the driver's own image.

Everything that is asserted of every run is `Night.problems`. A `HeldNight` has the tests' engine in vLLM's place: it is held in
its middle, with some chunks committed, some rows of open chunks answered and some requests under way, until what is done to it
has been done; then it goes on to its end.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import obstore
import pytest
import yaml
from airflow.sdk import DAG
from obstore.store import ObjectStore

from local.cluster import images
from local.cluster.cluster import Cluster
from local.cluster.faults import Faults
from nightshift.jobset.fleet.memory import FleetMember
from nightshift.jobset.labels import INDEX_ANNOTATION, RUN_LABEL
from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.jobset.manifest.ports import references
from nightshift.jobset.observation import Observation
from nightshift.jobset.verdict.outcome import Ending, Outcome
from nightshift.operators.infer import InferOperator
from nightshift.run import chunks
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.store import open_store
from tests.builders import a_spec
from tests.chaos.book import Book, Commit, Life, Seen
from tests.chaos.inputs import Input, Prepared, Vector
from tests.cluster.airflow_task import Log
from tests.cluster.attempts import Event, attempt
from tests.cluster.kube import Namespace
from tests.cluster.watch import Watch
from tests.cluster.witness import Gate, Run, Witness
from tests.integration.driver.canned import vector_of
from tests.integration.emulators import ANONYMOUS_CONNECTION, PROJECT, start_storage
from tests.kept_state import KeptState

ENGINE: Final = Path(__file__).with_name("engine.py")
BUCKET: Final = "nights"
CHUNKS: Final = 20
CHUNK_ROWS: Final = 12
GROUP: Final = 4
EARLY_CHUNKS: Final = 2
"""Of each worker's home, committed in the middle of a run. Of the next one the first request is answered too; the second one
is answered while what befalls the run befalls it; the third keeps the chunk open until the run goes on."""
PATIENCE_S: Final = 600.0
"""On two cores that have other work too."""
COMMIT_SLACK_S: Final = 0.1
"""An object's time may be a moment before it can be listed."""
FAILURE_COUNT: Final = "batch.kubernetes.io/job-index-failure-count"
SMALL: Final = {"requests": {"cpu": "10m", "memory": None, "ephemeral-storage": None, "nvidia.com/gpu": None}, "limits": None}
"""Many of them on a node of two cores, and nothing that Kueue would have to count but CPU."""

Document = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """What the runs of a test module share. pods, jobs, jobsets: all that there were in the namespace, as last seen."""

    cluster: Cluster
    faults: Faults
    namespace: Namespace
    folder: Path
    storage: str
    store: ObjectStore
    witness: Witness
    pods: Watch
    jobs: Watch
    jobsets: Watch


@contextmanager
def a_place(cluster: Cluster, folder: Path, namespace: Namespace) -> Iterator[Place]:
    """folder: for files of its own. namespace: with the service account of `Settings`."""
    with ExitStack() as stack:
        emulator = start_storage(folder, cluster.gateway)
        stack.callback(emulator.stop)
        emulator.client().create_bucket(BUCKET, project=PROJECT)
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("STORAGE_EMULATOR_HOST", emulator.url)
        environment.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", ANONYMOUS_CONNECTION)
        connection = f'{{"conn_type": "kubernetes", "extra": {{"kube_config_path": "{cluster.kubeconfig}"}}}}'
        environment.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", connection)
        yield Place(
            cluster,
            Faults(cluster),
            namespace,
            folder,
            emulator.url,
            open_store(f"gs://{BUCKET}"),
            stack.enter_context(Witness(cluster.gateway)),
            *(stack.enter_context(Watch(namespace, kind)) for kind in ("pods", "jobs", "jobsets.jobset.x-k8s.io")),
        )


class Judged(InferOperator):
    """Keeps what it was judged by. retries: of an index, in the manifest's place."""

    outcomes: list[Outcome]
    retries: int | None
    task_log: logging.Logger

    @property
    def log(self) -> Any:
        return self.task_log

    def judge(self, seen: Observation, *, expired: bool, starved: bool) -> Outcome:
        outcome = super().judge(seen, expired=expired, starved=starved)
        self.outcomes.append(outcome)
        return outcome

    def manifest(self, live: FleetMember, name: str) -> Document:
        manifest = super().manifest(live, name)
        if self.retries is not None:
            manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimitPerIndex"] = self.retries
        return manifest


@dataclass
class Struck:
    """What was done to a run. at: when. pods: whom it met."""

    at: float
    pods: list[str]


class Night:
    """One run, and the task `infer` that has it computed.

    number: tells it from the other runs of its place. chunk_rows, workers: of its plan. pod: the deployment's override for its
    pods' spec. retries: instead of the manifest's own. patience_s: for one step of it.
    """

    patience_s = PATIENCE_S

    def __init__(
        self,
        place: Place,
        number: int,
        spec: JobSpec,
        rows: Input,
        *,
        chunk_rows: int,
        workers: int,
        pod: Document,
        retries: int | None = None,
    ) -> None:
        self.place = place
        self.workers = workers
        self.rows = rows
        self.prepared = Prepared.make(place.store, spec, number, rows, chunk_rows, workers)
        self.book = Book(self.prepared.plan, rows.ordinals())
        self.log = Log()
        self.events: list[Event] = []
        self.outcomes: list[Outcome] = []
        self.struck: list[Struck] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self._retries = retries
        self._patch = place.folder / f"{self.run_id}.yaml"
        self._patch.write_text(yaml.safe_dump({"spec": pod}))
        self._context: Any = {"task_state_store": KeptState(), "ti": SimpleNamespace(id=f"attempt-{number}", max_tries=0)}
        self._thread = threading.Thread(target=self._run, daemon=True)
        # Not `with DAG`, which is of the process: nights are begun in several threads at once.
        dag = DAG("night", schedule=None)
        self._task = Judged(task_id="infer", dag=dag, run_prefix=self.prepared.run.prefix, terms="")

    # What happens to it.

    def start(self) -> None:
        self._thread.start()

    def strike(self, blow: Callable[[], object], *pods: Document) -> None:
        """Does something to the run, which meets these pods."""
        self.struck.append(Struck(time.time(), [pod["metadata"]["name"] for pod in pods]))
        blow()

    def finish(self) -> None:
        """Waits for the end of the task. Raises what the task raised."""
        self.wait_until("the end of the task", lambda: not self._thread.is_alive())
        if self.error:
            raise self.error
        self._write_down()

    # What there is to see of it.

    def pods(self, index: int | None = None) -> list[Document]:
        """All that there were, the oldest first; of one index."""
        found = [pod for pod in self.place.pods.objects() if self._is_mine(pod)]
        return found if index is None else [pod for pod in found if index_of(pod) == index]

    def living(self) -> list[Document]:
        """Pods whose driver runs."""
        running = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
        return [pod for pod in running if "running" in container(pod, DRIVER)["state"]]

    def pod(self, index: int) -> Document:
        """The one that is at work on an index; a kubelet may say so a while after its driver has begun."""

        def at_work() -> list[Document]:
            return [pod for pod in self.living() if index_of(pod) == index]

        self.wait_until(f"a pod at work on index {index}", lambda: len(at_work()) == 1)
        return at_work()[0]

    def jobs(self) -> list[Document]:
        return [job for job in self.place.jobs.objects() if self._is_mine(job)]

    def jobsets(self) -> list[Document]:
        return [jobset for jobset in self.place.jobsets.objects() if self._is_mine(jobset)]

    def committed(self) -> set[int]:
        return {_chunk_of(each["path"]) for each in self._objects("ledger")}

    def failures_counted(self) -> int:
        """By the Jobs' controller, over all Jobs and indexes."""
        return sum(job["status"].get("failed", 0) for job in self.jobs())

    def index_failures(self, index: int) -> int:
        """How many failures Kubernetes counts against the index, as the last pod that it has made for it says."""
        return int(self.pods(index)[-1]["metadata"]["annotations"][FAILURE_COUNT])

    def endings(self) -> list[tuple[Ending, str]]:
        """What the task found its JobSets to have come to, each time that it was woken: ending and reason."""
        return [(outcome.ending, outcome.reason) for outcome in self.outcomes]

    def saved_by(self, pod: str) -> int:
        """How many rows of open chunks the pod's driver saved before it ended."""
        return sum(len(partial.ordinals) for partial in self.book.saved if partial.life == pod)

    def merged_from(self, pod: str) -> int:
        """How many of the committed rows were taken over from what the pod had saved."""
        found = [chunks.decode(self._body(each["path"]))[1].taken for each in self._objects("ledger")]
        return sum(part.rows for taken in found for part in taken if _pod_of(part.attempt) == pod)

    def left_by(self, pod: str) -> int:
        """How many of the rows that the pod saved were committed by one that began after its end, and so knew of them."""
        end = self.book.lives[pod].ended or 0.0
        rows = [row for partial in self.book.saved if partial.life == pod for row in partial.ordinals]
        writers = [self.book.commits[self.book.chunk_of(row)].life for row in rows]
        return sum(writer is not None and self.book.lives[writer].began > end for writer in writers)

    def writers(self) -> set[str]:
        """The pods that have committed a chunk."""
        found = [chunks.decode(self._body(each["path"]))[1] for each in self._objects("ledger")]
        return {_pod_of(provenance.attempt) for provenance in found}

    def kept_of(self, pod: str) -> int:
        """How many predictions there are in the chunks that the pod's driver committed and in what it saved."""
        found = [chunks.decode(self._body(each["path"]))[1] for part in ("ledger", "partials") for each in self._objects(part)]
        return sum(provenance.predictions for provenance in found if _pod_of(provenance.attempt) == pod)

    def said_by(self, pod: str) -> list[Document]:
        """The lines of the pod's driver, as the task's log has them."""
        mark = f"[worker-{pod.rpartition('-worker-')[2]} {DRIVER}] "
        return [json.loads(line.removeprefix(mark)) for line in self.log.lines if line.startswith(mark)]

    def problems(self) -> list[str]:
        """What must not be, in words: a row without an answer, with two or with another's; and, where the engines tell what
        they were asked, a committed chunk that a process which began later computed again, a row that was saved and computed
        again, and one that a drain forgot."""
        return [*self.prepared.verdict(self.rows, self.book, self.reference()).problems, *self.book.violations()]

    def reference(self) -> dict[str, Vector] | None:
        """The vectors that the rows must have; None where they are not known."""
        return None

    def wait_until(self, what: str, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + self.patience_s
        while not holds():
            if self.error:
                raise self.error
            if time.monotonic() > end:
                shown = self.place.namespace.kubectl("get", "all,events", "--selector", f"{RUN_LABEL}={self.run_id}")
                state = f"committed are {self.committed()}\n{shown}\n{self.log.lines[-40:]}"
                raise AssertionError(f"{what}: not within {self.patience_s:.0f} s; {state}")
            time.sleep(0.2)

    def _run(self) -> None:
        try:
            self.result = attempt(self._operator, self._context, self.log.logger, self.events.append)
        except BaseException as error:
            self.error = error

    def _operator(self) -> Judged:
        """As another process would have it: nothing but the task's own parameters is kept."""
        operator = copy.copy(self._task)
        settings = Settings(
            bucket=BUCKET,
            project=PROJECT,
            namespace=self.place.namespace.name,
            # Accelerators, too, are only names here.
            server_image=images.PYTHON,
            cpu_server_image=images.PYTHON,
            image_pull_policy="IfNotPresent",
            pod_patch=str(self._patch),
        )
        operator.__dict__.update(settings=settings, outcomes=self.outcomes, retries=self._retries, task_log=self.log.logger)
        return operator

    @property
    def run_id(self) -> str:
        return self.prepared.run.run_id

    def _is_mine(self, thing: Document) -> bool:
        return bool(thing["metadata"].get("labels", {}).get(RUN_LABEL) == self.run_id)

    def _objects(self, part: str) -> list[Any]:
        work = self.prepared.run.work(self.prepared.plan.uid)
        return [meta for page in obstore.list(self.place.store, f"{work.prefix}/{part}") for meta in page]

    def _body(self, path: str) -> bytes:
        return bytes(obstore.get(self.place.store, path).bytes())

    def _write_down(self) -> None:
        """Completes the book with what the store and the cluster know."""
        book = self.book
        for each in self._objects("ledger"):
            _, provenance = chunks.decode(self._body(each["path"]))
            at = each["last_modified"].timestamp() + COMMIT_SLACK_S
            book.commits[provenance.chunk] = Commit(at, _pod_of(provenance.attempt), None)
        for each in self._objects("partials"):
            table, provenance = chunks.decode(self._body(each["path"]))
            at = each["last_modified"].timestamp() + COMMIT_SLACK_S
            book.saved.append(Seen(at, _pod_of(provenance.attempt), tuple(table.column("ordinal").to_pylist())))
        for struck in self.struck:
            for pod in self.pods():
                ended = container(pod, DRIVER)["state"].get("terminated")
                name = pod["metadata"]["name"]
                if name in struck.pods and ended:
                    life = book.lives.setdefault(name, Life(name, struck.at))
                    life.asked, life.code = struck.at, ended["exitCode"]
                    # Kubernetes cuts its times to whole seconds.
                    life.ended = datetime.fromisoformat(ended["finishedAt"]).timestamp() + 1


class HeldNight(Night):
    """One whose engines are the tests' own. changes: of its spec. pod: what its pods' override has besides."""

    def __init__(
        self,
        place: Place,
        number: int,
        *,
        workers: int,
        changes: Mapping[str, Any] | None = None,
        pod: Mapping[str, Any] | None = None,
        retries: int | None = None,
    ) -> None:
        rows = Input(tuple(f"row {ordinal} of night {number}" for ordinal in range(CHUNKS * CHUNK_ROWS)), {})
        spec = a_spec(**{"job": "night", "request__rows_per_request": GROUP, **(changes or {})})
        patch = {**_patch(place, number, spec.compute.worker().engines), **(pod or {})}
        super().__init__(place, number, spec, rows, chunk_rows=CHUNK_ROWS, workers=workers, pod=patch, retries=retries)
        plan = self.prepared.plan
        homes = [plan.shard(index) for index in range(workers)]
        self.early_chunks = {chunk for home in homes for chunk in home[:EARLY_CHUNKS]}
        held = [plan.chunk_range(home[EARLY_CHUNKS]) for home in homes]
        self.early_rows = {row for chunk in self.early_chunks for row in plan.chunk_range(chunk)}
        self.early_rows |= {row for chunk in held for row in chunk[:GROUP]}
        self.gate = Gate(self.early_rows, {row for chunk in held for row in chunk[GROUP : 2 * GROUP]})
        self.heard = Run(self.book, self.gate)
        place.witness.runs[str(number)] = self.heard

    def reach_the_middle(self) -> None:
        """Returns when the gate holds the run: some chunks are committed, and some rows of others are answered."""

        def held() -> bool:
            return self.committed() == self.early_chunks and self.heard.answered() == self.early_rows

        self.wait_until("the middle of the run", held)

    def recover(self, pods: int) -> None:
        """Returns when so many new pods' drivers have found their engines since the first strike. The pods that were struck
        get some more answers on their way out."""
        struck = {name for each in self.struck for name in each.pods}

        def told() -> bool:
            return all(_ends(pod) for pod in self.pods() if pod["metadata"]["name"] in struck)

        def replaced() -> bool:
            return sum(life.began > self.struck[0].at for life in list(self.book.lives.values())) >= pods

        self.wait_until("the end of the pods that were struck", told)
        # Their drivers get SIGTERM within 0.2 s, and wait for answers for 6 s.
        time.sleep(1)
        self.gate.ajar()
        self.wait_until("the replacement at work", replaced)

    def finish(self) -> None:
        """Lets the run go on to its end, and the task. Raises what the task raised."""
        self.gate.open()
        super().finish()

    def reference(self) -> dict[str, Vector]:
        return {text: vector_of(text) for text in self.rows.texts if text is not None}

    def sent_after(self, pod: str, moment: float) -> int:
        """Rows that the pod asked its engine for after a moment."""
        return sum(len(each.ordinals) for each in self.book.sent if each.life == pod and each.at > moment)


def index_of(pod: Document) -> int:
    return int(pod["metadata"]["annotations"][INDEX_ANNOTATION])


def container(pod: Document, name: str) -> Document:
    """The status of one container, sidecars included."""
    status = pod["status"]
    every = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return next((each for each in every if each["name"] == name), {"state": {}})


def disruption(pod: Document) -> str:
    """The reason of its condition DisruptionTarget; '' without one."""
    found = [each for each in pod["status"].get("conditions", []) if each["type"] == "DisruptionTarget"]
    return str(found[0]["reason"]) if found else ""


def _ends(pod: Document) -> bool:
    """Whether it has been told to end, or has ended."""
    return "deletionTimestamp" in pod["metadata"] or bool(disruption(pod)) or exit_code(pod) is not None


def exit_code(pod: Document) -> int | None:
    """Of its driver."""
    code: int | None = container(pod, DRIVER)["state"].get("terminated", {}).get("exitCode")
    return code


def _patch(place: Place, number: int, engines: int) -> Document:
    """The deployment's override for these pods: the tests' engine, and the store at the bridge's address. Several engines are
    started by the manifest's own program."""
    name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    server = {
        "name": SERVER,
        **_started(["python3", "-u", "-c", ENGINE.read_text()], engines),
        "env": [{"name": "WITNESS", "value": place.witness.url(str(number))}, name],
        "resources": SMALL,
        "startupProbe": {"periodSeconds": 1, "failureThreshold": 300},
    }
    storage = {"name": "STORAGE_EMULATOR_HOST", "value": place.storage}
    return {"initContainers": [server], "containers": [{"name": DRIVER, "env": [storage], "resources": SMALL}]}


def _chunk_of(path: str) -> int:
    return int(path.rpartition("chunk-")[2].partition(".")[0])


def _pod_of(attempt: str) -> str:
    """A driver calls its life by its pod's name and eight digits."""
    return attempt[:-9]


def _started(engine: list[str], engines: int) -> Document:
    if engines == 1:
        return {"command": engine, "args": []}
    return {"args": [",".join(references(engines)), "60", "60", *engine]}
