"""Two DAGs that run a JobSet unrelated to nightshift: one on any cluster, one on a GKE cluster.

From this repository they import only the operators. `docs/parts/jobset-operator.md` says what happens when.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from nightshift.operators.jobset import KubernetesJobSetOperator
from nightshift.operators.kubernetes_engine import GKEStartJobSetOperator

ESTIMATE_PI = """
import os, random

throws = 1_000_000
random.seed(int(os.environ["JOB_COMPLETION_INDEX"]))
inside = sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(throws))
print("pi is about", 4 * inside / throws, flush=True)
"""

# Each field is templated. You can also give a path, such as "jobsets/pi.yaml", relative to the DAG file.
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "pi"},
    "spec": {
        "replicatedJobs": [
            {
                "name": "worker",
                "template": {
                    "spec": {
                        "completionMode": "Indexed",
                        "completions": 2,
                        "parallelism": 2,
                        "backoffLimitPerIndex": 1,
                        # A pod that is taken away is replaced, and not counted as a failure.
                        "podFailurePolicy": {
                            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
                        },
                        "template": {
                            "spec": {
                                "restartPolicy": "Never",
                                "containers": [
                                    {
                                        "name": "main",
                                        "image": "{{ params.image }}",
                                        "command": ["python3", "-c", ESTIMATE_PI],
                                        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                                    }
                                ],
                            }
                        },
                    }
                },
            }
        ]
    },
}

with DAG("jobset-example", schedule=None, params={"image": "python:3.13-slim", "namespace": "default"}):
    KubernetesJobSetOperator(
        task_id="estimate_pi",
        namespace="{{ params.namespace }}",
        jobset=JOBSET,
        deadline=timedelta(minutes=30),
        startup_timeout=timedelta(minutes=10),
        retries=2,
    )

with DAG("jobset-example-gke", schedule=None, params={"image": "python:3.13-slim"}):
    GKEStartJobSetOperator(
        task_id="estimate_pi",
        project_id="acme",
        location="europe-west4",
        cluster_name="accelerators",
        use_dns_endpoint=True,
        namespace="research",
        jobset=JOBSET,
        queue_name="nightly",
        deadline=timedelta(hours=6),
        on_kill_policy="suspend",
        retries=2,
    )
