"""Runs a JobSet on a Kubernetes cluster. Works for any JobSet, not only nightshift's."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, get_args

import yaml
from airflow.sdk import BaseOperator

from nightshift import exits
from nightshift.jobset.fleet.memory import FleetMember
from nightshift.jobset.fleet.work import Waited
from nightshift.jobset.identity import digest_name
from nightshift.jobset.labels import JOBSET_API_VERSION, QUEUE_LABEL, QUEUE_PRIORITY_LABEL
from nightshift.operators.jobset_errors import (
    JobSetApplicationFailure,
    JobSetDeadlineExceeded,
    JobSetLost,
    JobSetPreempted,
    JobSetRefused,
    JobSetStartupTimeout,
    JobSetTaskError,
    JobSetUnavailable,
    JobSetUnknown,
)
from nightshift.operators.jobset_task import JobSetTask
from nightshift.triggers.jobset import KillPolicy, KubernetesJobSetTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from nightshift.jobset.kubernetes.api import JobSetApi
    from nightshift.jobset.observation import Observation
    from nightshift.jobset.runtime import Runtime
    from nightshift.jobset.verdict.outcome import Outcome

__all__ = [
    "JobSetApplicationFailure",
    "JobSetDeadlineExceeded",
    "JobSetLost",
    "JobSetPreempted",
    "JobSetRefused",
    "JobSetStartupTimeout",
    "JobSetTaskError",
    "JobSetUnavailable",
    "JobSetUnknown",
    "KubernetesJobSetOperator",
]

LABELS: Final = ("dag_id", "task_id", "run_id")


class KubernetesJobSetOperator(JobSetTask, BaseOperator):
    """
    Runs a JobSet to its end, deferred while its pods work.

    Whatever is killed and repeated, there is one JobSet: its name is made from the task instance and the number of its
    JobSets that have failed, so a repeat finds and adopts the existing one. Pods that are taken away (Spot, eviction, a
    drained node, Kueue's preemption) cost no retry of the task: it continues with a new JobSet by itself. If the program
    itself fails, the task fails immediately, with its last lines and exit code. If the cluster does not answer, the task
    keeps waiting until the deadline.

    Every container's log is copied into the task's log while it runs. Returns ``{"name", "namespace", "outcome"}``.

    .. code-block:: python

        KubernetesJobSetOperator(
            task_id="train",
            namespace="research",
            jobset="jobsets/train.yaml",  # or a mapping; templated
            queue_name="nightly",
            deadline=timedelta(hours=6),
        )

    :param jobset: the manifest: a mapping, YAML text, or the path of a ``.yaml``, ``.yml`` or ``.json`` file in the DAG folder
        (templated). The JobSet's name is its ``metadata.name`` and a digest.
    :param namespace: where to create it; by default the manifest's own namespace, else ``default`` (templated).
    :param name: replaces the manifest's name before the digest (templated).
    :param labels: additional labels of the JobSet (templated).
    :param annotations: additional annotations of the JobSet (templated).
    :param queue_name: Kueue's LocalQueue (templated).
    :param priority_class: Kueue's WorkloadPriorityClass (templated).
    :param deadline: time for all attempts together, retries included; then the JobSet is deleted and the task fails without a
        retry. A shorter ``execution_timeout`` takes its place. Clearing the task gives it the whole time again.
    :param startup_timeout: how long the JobSet may have no running pod before the attempt fails with JobSetStartupTimeout;
        None: until the deadline.
    :param resume_limit: how often the task continues by itself after a disruption.
    :param resume_codes: exit codes by which a program says that it was told to end and that work is left (75: EX_TEMPFAIL).
    :param permanent_codes: exit codes by which a program says: not retryable (78: EX_CONFIG).
    :param on_kill_policy: what happens to the JobSet if a person marks the waiting task failed or successful, clears it, or
        deletes its DAG run: ``delete``, ``suspend`` (its pods go, finished indexes stay; the next attempt resumes it) or
        ``leave``. Shutting down a worker or triggerer never ends a running JobSet.
    :param keep_finished: keep a finished JobSet until its ``ttlSecondsAfterFinished`` instead of deleting it.
    :param get_logs: copy the containers' logs into the task's log.
    :param deferrable: wait in the triggerer instead of the worker.
    :param kubernetes_conn_id: the :ref:`kubernetes connection <howto/connection:kubernetes>` (templated).
    :param config_file: path of a kubeconfig to use instead of the connection's (templated).
    :param cluster_context: a context of the kubeconfig (templated).
    :param in_cluster: use the service account of the worker's own pod.
    """

    template_fields: Sequence[str] = (
        "jobset",
        "namespace",
        "name",
        "labels",
        "annotations",
        "queue_name",
        "priority_class",
        "kubernetes_conn_id",
        "config_file",
        "cluster_context",
    )
    template_ext: Sequence[str] = (".yaml", ".yml", ".json")
    template_fields_renderers = {"jobset": "yaml", "labels": "json", "annotations": "json"}  # noqa: RUF012 - Airflow's own

    def __init__(
        self,
        *,
        jobset: Mapping[str, Any] | str,
        namespace: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        queue_name: str | None = None,
        priority_class: str | None = None,
        deadline: timedelta = timedelta(hours=24),
        startup_timeout: timedelta | None = None,
        resume_limit: int = 100,
        resume_codes: Collection[int] = (exits.RESUME,),
        permanent_codes: Collection[int] = (exits.CONFIG,),
        on_kill_policy: KillPolicy = "delete",
        keep_finished: bool = False,
        get_logs: bool = True,
        deferrable: bool = True,
        kubernetes_conn_id: str | None = "kubernetes_default",
        config_file: str | None = None,
        cluster_context: str | None = None,
        in_cluster: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if on_kill_policy not in (policies := get_args(KillPolicy)):
            raise ValueError(f"on_kill_policy is {on_kill_policy!r}. Write {' or '.join(map(repr, policies))}.")
        if deadline <= timedelta(0):
            raise ValueError(f"deadline is {deadline}. Write the time that the task may take, for example timedelta(hours=6).")
        self.jobset = jobset
        self.namespace = namespace
        self.name = name
        self.labels = labels
        self.annotations = annotations
        self.queue_name = queue_name
        self.priority_class = priority_class
        self.deadline = deadline
        self.startup_timeout = startup_timeout
        self.resume_limit = resume_limit
        self.resume_codes = frozenset(resume_codes)
        self.permanent_codes = frozenset(permanent_codes)
        self.on_kill_policy = on_kill_policy
        self.keep_finished = keep_finished
        self.get_logs = get_logs
        self.deferrable = deferrable
        self.kubernetes_conn_id = kubernetes_conn_id
        self.config_file = config_file
        self.cluster_context = cluster_context
        self.in_cluster = in_cluster

    def execute(self, context: Context) -> Any:
        return self.run_jobset(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        return self.complete(context, event)

    def on_kill(self) -> None:
        self.end_on_kill()

    @cached_property
    def hook(self) -> JobSetApi:
        from nightshift.hooks.jobset import JobSetHook

        return JobSetHook(
            conn_id=self.kubernetes_conn_id,
            config_file=self.config_file,
            cluster_context=self.cluster_context,
            in_cluster=self.in_cluster,
        )

    @cached_property
    def runtime(self) -> Runtime:
        from nightshift.jobset.kubernetes.runtime import KubernetesRuntime

        return KubernetesRuntime(self.hook, self.target_namespace)

    @cached_property
    def template(self) -> dict[str, Any]:
        """The manifest as given. Raises JobSetRefused if it is not one."""
        try:
            given = yaml.safe_load(self.jobset) if isinstance(self.jobset, str) else self.jobset
        except yaml.YAMLError as error:
            raise JobSetRefused(f"{self.task_id}: jobset is not YAML: {error}") from error
        if not isinstance(given, Mapping):
            raise JobSetRefused(f"{self.task_id}: jobset is {type(given).__name__}. Give a JobSet's manifest, or a file of it.")
        if given.get("kind") != "JobSet" or not isinstance(given.get("spec"), Mapping):
            raise JobSetRefused(f"{self.task_id}: jobset has kind {given.get('kind')!r}. Write kind: JobSet, and its spec.")
        return dict(given)

    @property
    def target_namespace(self) -> str:
        return str(self.namespace or (self.template.get("metadata") or {}).get("namespace") or "default")

    @property
    def memory_id(self) -> str:
        ti = self._context["ti"]
        return f"airflow:{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}"

    @cached_property
    def work_id(self) -> str:
        """Scheduled runs have the same ids in every Airflow: only its own attempts' ids tell it from another."""
        identity = self._memory().identity()
        return f"{self.memory_id}/{identity}" if identity else self.memory_id

    def jobset_name(self, generation: int) -> str:
        prefix = self.name or (self.template.get("metadata") or {}).get("name") or _slug(self.task_id)
        return digest_name(prefix, self.work_id, generation)

    def manifest(self, live: FleetMember, name: str) -> dict[str, Any]:
        from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value

        meta = self.template.get("metadata") or {}
        ti = self._context["ti"]
        queue = {QUEUE_LABEL: self.queue_name, QUEUE_PRIORITY_LABEL: self.priority_class}
        labels = {
            **{each: make_safe_label_value(str(getattr(ti, each))) for each in LABELS},
            **(meta.get("labels") or {}),
            **(self.labels or {}),
            **{key: value for key, value in queue.items() if value},
        }
        spec = dict(self.template["spec"])
        spec["replicatedJobs"] = [self._with_backstop(each) for each in spec.get("replicatedJobs") or ()]
        annotations = {**(meta.get("annotations") or {}), **(self.annotations or {})}
        return {
            "apiVersion": JOBSET_API_VERSION,
            **self.template,
            "metadata": {
                **{key: value for key, value in meta.items() if key != "generateName"},
                "name": name,
                "namespace": self.target_namespace,
                "labels": labels,
                "annotations": annotations,
            },
            "spec": spec,
        }

    def _with_backstop(self, replicated: Mapping[str, Any]) -> dict[str, Any]:
        """If Airflow never comes back, the cluster ends the Jobs when this task would have ended them."""
        job = replicated.get("template") or {}
        spec = {"activeDeadlineSeconds": math.ceil(self.seconds()), **(job.get("spec") or {})}
        return {**replicated, "template": {**job, "spec": spec}}

    def seconds(self) -> float:
        # Airflow itself does not look at it while the task is deferred.
        return min(self.deadline, self.execution_timeout or self.deadline).total_seconds()

    def waiter(self, waited: list[Waited], deadline: float) -> BaseTrigger:
        return KubernetesJobSetTrigger(
            **self._followed(waited, deadline),
            kubernetes_conn_id=self.kubernetes_conn_id,
            config_file=self.config_file,
            cluster_context=self.cluster_context,
            in_cluster=self.in_cluster,
        )

    def _followed(self, waited: list[Waited], deadline: float) -> dict[str, Any]:
        return {
            "jobsets": [{"name": each.name, "uid": each.uid} for each in waited],
            "namespace": self.target_namespace,
            "deadline": deadline,
            "startup_timeout": self.startup_timeout.total_seconds() if self.startup_timeout else None,
            "get_logs": self.get_logs,
            "owner": self.attempt_id,
            "kill_policy": self.on_kill_policy,
        }

    def judge(self, seen: Observation, *, expired: bool, starved: bool) -> Outcome:
        from nightshift.jobset.verdict.outcome import classify

        return classify(
            seen,
            expired=expired,
            starved=starved,
            resume_codes=self.resume_codes,
            permanent_codes=self.permanent_codes,
        )

    def result(self, name: str, seen: Observation) -> dict[str, Any]:
        return {"name": name, "namespace": self.target_namespace, "outcome": "succeeded"}


def _slug(text: str) -> str:
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    return kept.strip("-") or "jobset"
