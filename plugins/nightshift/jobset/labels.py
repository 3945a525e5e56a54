"""The labels, annotations and API versions of Kubernetes, JobSet, Kueue and nightshift. Each stands here only."""

from __future__ import annotations

from typing import Final

JOBSET_API_VERSION: Final = "jobset.x-k8s.io/v1alpha2"
KUEUE_API_VERSION: Final = "kueue.x-k8s.io/v1beta2"

JOBSET_NAME_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"
"""On Jobs and pods, as the next three are."""
REPLICATED_JOB_LABEL: Final = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX_LABEL: Final = "jobset.sigs.k8s.io/job-index"
"""Which of the Jobs of a replicatedJob."""
RESTART_LABEL: Final = "jobset.sigs.k8s.io/restart-attempt"
EXCLUSIVE_TOPOLOGY_ANNOTATION: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"

JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
INDEX_ANNOTATION: Final = "batch.kubernetes.io/job-completion-index"
FAILURES_ANNOTATION: Final = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES_ANNOTATION: Final = "batch.kubernetes.io/job-index-ignored-failure-count"

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
QUEUE_PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
KUEUE_JOB_UID_LABEL: Final = "kueue.x-k8s.io/job-uid"

SAFE_TO_EVICT_ANNOTATION: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""On a pod: whether a node may be removed for being too idle although the pod runs there."""
NODE_POOL_LABEL: Final = "cloud.google.com/gke-nodepool"

RUN_LABEL: Final = "nightshift.dev/run"
JOB_LABEL: Final = "nightshift.dev/job"
PROFILE_LABEL: Final = "nightshift.dev/profile"
ROLE_LABEL: Final = "nightshift.dev/role"
RUN_URL_ANNOTATION: Final = "nightshift.dev/run-url"
PORT_ENV_ANNOTATION: Final = "nightshift.dev/port-env"
"""Which variable carries which port, for a runtime whose pods share one network; a cluster does not read it."""
SPEC_HASH_ANNOTATION: Final = "nightshift.dev/spec-hash"
"""See `nightshift.jobset.identity.spec_hash`."""
ENGINE_DEFAULTS_ANNOTATION: Final = "nightshift.dev/engine-defaults"
"""With what the engine starts where the job's author says nothing, for people (`nightshift.spec.engine_defaults`)."""
WORK_ANNOTATION: Final = "nightshift.dev/work"
"""Whose work a JobSet does; only a task with the same work may adopt it."""
OWNER_ANNOTATION: Final = "nightshift.dev/owner"
"""The attempt of a task that waits for the JobSet: it writes its own id (`nightshift.jobset.kubernetes.on_kill`)."""
JUDGED_ANNOTATION: Final = "nightshift.dev/judged"
"""On a finished JobSet that is kept: by which attempt its end was judged. A task that runs again starts a new one."""
PAUSED_ANNOTATION: Final = "nightshift.dev/paused"
"""On a JobSet that a user has paused: by whom and when."""
LOGGED_UNTIL_ANNOTATION: Final = "nightshift.dev/logged-until"
"""Up to when a follower has copied every log."""
