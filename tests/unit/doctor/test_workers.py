"""Whether the workers' rights end at their prefix, by the bucket's policy."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import pytest

from nightshift.doctor import workers
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Ok, Skipped
from tests.builders import a_spec
from tests.unit.doctor.fakes import OWN_PREFIX, WORKER, FakeConnections, google, here, only, problem

pytestmark = pytest.mark.unit

ACCOUNT = f"{WORKER}/nightshift-worker"
CREATOR = "roles/storage.objectCreator"


def bound(role: str, member: str, expression: str | None = None) -> dict[str, Any]:
    condition = {} if expression is None else {"condition": {"title": "t", "expression": expression}}
    return {"role": role, "members": ["user:somebody@acme.com", member]} | condition


def below(prefix: str) -> str:
    return f'resource.name.startsWith("projects/_/buckets/runs/objects/{prefix}")'


def asked(
    *bindings: dict[str, Any], account: str = "", job: bool = False, runtime: str = "", named: str = "job"
) -> Surroundings:
    spec = a_spec(job=named) if job else None
    found = here(FakeConnections(account=google(policy=(200, {"bindings": list(bindings)}))), job=spec)
    settings = dataclasses.replace(
        found.settings,
        service_account=account or found.settings.service_account,
        runtime=runtime or found.settings.runtime,
    )
    return dataclasses.replace(found, settings=settings)


def test_rights_that_end_at_the_prefix_are_well() -> None:
    reading = bound("roles/storage.objectViewer", ACCOUNT)

    assert only(workers.rights, asked(OWN_PREFIX, reading)) == Ok(
        "workers' rights", "nightshift-worker, the account of all jobs, writes below gs://runs/_workers/ only"
    )


@pytest.mark.parametrize(
    "member",
    [
        ACCOUNT,
        "serviceAccount:p.svc.id.goog[nightshift/nightshift-worker]",
        "principalSet://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p.svc.id.goog/namespace/nightshift",
        "principalSet://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p.svc.id.goog/*",
        "allAuthenticatedUsers",
        "allUsers",
    ],
)
@pytest.mark.parametrize("role", [CREATOR, "roles/storage.objectUser", "roles/storage.admin", "roles/editor"])
def test_a_role_without_a_condition_is_wrong_whoever_includes_the_worker(member: str, role: str) -> None:
    found = problem(workers.rights, asked(OWN_PREFIX, bound(role, member)))

    assert found.problem == f"{member} may write anywhere in gs://runs: its {role} has no condition"
    first, second = found.fix.split(" && ")
    assert shlex.split(first)[-3:] == [
        f"--member={member}",
        f"--role={CREATOR}",
        f"--condition=title=own-prefix,expression={below('_workers/')}",
    ]
    assert shlex.split(second)[-3:] == [f"--member={member}", f"--role={role}", "--condition=None"]


@pytest.mark.parametrize(
    "member", [f"{WORKER}/another", "principal://x/subject/ns/other/sa/nightshift-worker", f"{ACCOUNT}-2", "user:a@acme.com"]
)
def test_others_may_have_what_they_need(member: str) -> None:
    assert isinstance(only(workers.rights, asked(OWN_PREFIX, bound("roles/storage.admin", member))), Ok)


@pytest.mark.parametrize("expression", [below("_workers"), below(""), f"{below('_workers/')} || {below('job/')}", "true"])
def test_another_condition_is_not_understood(expression: str) -> None:
    found = only(workers.rights, asked(bound(CREATOR, ACCOUNT, expression)))

    assert isinstance(found, Skipped)
    assert expression in found.because


@pytest.mark.parametrize("prefix", ["_worker/", "_workers/other/", "_workers2/"])
def test_a_condition_that_misses_its_prefix_lets_no_worker_write(prefix: str) -> None:
    """A letter too few, and the whole fleet computes for nothing."""
    reading = bound("roles/storage.objectViewer", ACCOUNT)

    found = problem(workers.rights, asked(reading, bound(CREATOR, ACCOUNT, below(prefix)), job=True))

    assert found.problem.startswith(f"{ACCOUNT} may not create objects below gs://runs/_workers/: ")
    assert found.affects == workers.LACKING
    assert below("_workers/") in found.fix


@pytest.mark.parametrize("job", [True, False])
def test_one_that_names_this_job_alone_does(job: bool) -> None:
    found = list(workers.rights(asked(bound(CREATOR, ACCOUNT, below("_workers/job/")), job=job)))

    assert [type(each) for each in found] == [Skipped]


def test_one_of_several_that_reaches_it_is_enough() -> None:
    missing = bound(CREATOR, ACCOUNT, below("models/"))

    found = list(workers.rights(asked(OWN_PREFIX, missing)))

    assert [type(each) for each in found] == [Skipped], "what the other one allows is not known"


def test_without_a_role_that_writes_nothing_is_known() -> None:
    found = only(workers.rights, asked(bound("roles/storage.objectViewer", ACCOUNT)))

    assert isinstance(found, Skipped)
    assert "no role that creates objects" in found.because


def test_a_role_of_ones_own_is_not_understood() -> None:
    found = only(workers.rights, asked(OWN_PREFIX, bound("projects/acme/roles/writer", ACCOUNT)))

    assert isinstance(found, Skipped)
    assert "projects/acme/roles/writer" in found.because


class TestOneForEachJob:
    def test_each_ends_at_its_own(self) -> None:
        binding = bound(CREATOR, f"{WORKER}/nightshift-job", below("_workers/job/"))

        found = only(workers.rights, asked(binding, account="nightshift-{job}", job=True))

        whose = "nightshift-job, the account of job alone, writes"
        assert found == Ok("workers' rights", f"{whose} below gs://runs/_workers/job/ only")

    def test_a_name_that_makes_it_anothers_account_is_wrong(self) -> None:
        found = problem(workers.rights, asked(account="nightshift-{job}", job=True, named="models"))

        assert "makes nightshift-models the account of its pods" in found.problem

    def test_the_prefix_of_all_is_too_wide(self) -> None:
        binding = bound(CREATOR, f"{WORKER}/nightshift-job", below("_workers/"))

        found = problem(workers.rights, asked(binding, account="nightshift-{job}", job=True))

        assert "other jobs' chunks" in found.problem
        assert below("_workers/job/") in found.fix

    def test_another_jobs_account_is_not_asked_about(self) -> None:
        binding = bound(CREATOR, f"{WORKER}/nightshift-other")

        assert isinstance(only(workers.rights, asked(binding, account="nightshift-{job}", job=True)), Skipped)

    def test_without_a_job_any_that_may_write_everywhere_is_wrong(self) -> None:
        binding = bound(CREATOR, f"{WORKER}/nightshift-other")

        assert isinstance(only(workers.rights, asked(binding, account="nightshift-{job}")), Failed)


def test_a_policy_that_may_not_be_read_says_how_to_look() -> None:
    found = only(workers.rights, here(FakeConnections(account=google(policy=403))))

    assert isinstance(found, Skipped)
    assert found.needs == ""
    assert "gcloud storage buckets get-iam-policy gs://runs" in found.because


def test_a_policy_that_names_no_worker_proves_nothing() -> None:
    found = only(workers.rights, asked())

    assert isinstance(found, Skipped)
    assert "nightshift-worker of namespace nightshift" in found.because


def test_the_local_runtime_has_no_accounts() -> None:
    assert isinstance(only(workers.rights, asked(runtime="local:/state")), Skipped)
