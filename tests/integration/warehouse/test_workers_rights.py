"""Nights whose workers may create below their own prefix only, as k8s/README.md grants it: real tasks, real drivers, and the
storage emulator's identities. What a worker that was taken over tries is refused by IAM, or harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import obstore
import pyarrow as pa
import pytest
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]
from obstore.exceptions import PermissionDeniedError
from obstore.store import ObjectStore

from nightshift.operators.failures import Entry, NightFailed
from nightshift.operators.seal import SealOperator
from nightshift.operators.workers_rights import check_workers
from nightshift.run import pauses
from nightshift.run.inputs import InputReader
from nightshift.run.names import RunRef, Work
from nightshift.run.plan import load_plan
from nightshift.store import StoreUnavailable, open_store
from tests.integration.driver.canned import vector_of
from tests.integration.emulators import AIRFLOW, ANONYMOUS_CONNECTION, OTHER_WORKER, WORKER, below, grant
from tests.integration.warehouse.conftest import Night, _chunk, prediction
from tests.integration.warehouse.test_plan_operator import planner as planner
from tests.integration.warehouse.test_redo_night import DAY, Job
from tests.integration.warehouse.test_redo_night import job as job

pytestmark = pytest.mark.integration

ROWS = 6
TOMORROW = "2026-11-23"
TOKEN = "STORAGE_EMULATOR_TOKEN"


def granted(night: Night, client: StorageClient, *, each_its_own: bool) -> None:
    """each_its_own: an account for each job; else all jobs share `WORKER`."""
    bucket = client.bucket(night.settings.bucket)
    prefixes = (
        {WORKER: f"_workers/{night.spec.job}/", OTHER_WORKER: "_workers/other/"} if each_its_own else {WORKER: "_workers/"}
    )
    grant(
        bucket,
        ("storage.objectUser", AIRFLOW, None),
        ("storage.legacyBucketReader", AIRFLOW, None),
        *(("storage.objectViewer", worker, None) for worker in prefixes),
        *(("storage.objectCreator", worker, below(bucket.name, prefix)) for worker, prefix in prefixes.items()),
    )


@pytest.fixture
def as_worker(night: Night, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ObjectStore]:
    """The bucket, as a worker sees it."""

    def opened(token: str = "worker-token") -> ObjectStore:
        with monkeypatch.context() as patch:
            patch.setenv(TOKEN, token)
            return open_store(f"gs://{night.settings.bucket}")

    return opened


@pytest.fixture
def guarded(job: Job, storage_client: StorageClient, monkeypatch: pytest.MonkeyPatch) -> Job:
    """One account for each job. The tasks have Airflow's rights, drivers the worker's."""
    granted(job.night, storage_client, each_its_own=True)
    monkeypatch.setenv(TOKEN, "airflow-token")
    job.night.store = open_store(f"gs://{job.night.settings.bucket}")
    job.worker = {TOKEN: "worker-token"}
    job.fill(ROWS, bad=range(0))
    return job


def table(job: Job) -> list[tuple[Any, ...]]:
    sql = f"SELECT name, vector FROM `{job.night.destination}` WHERE snapshot_date = DATE '{DAY}' ORDER BY name"
    return job.night.rows(sql)


TRUE = [(f"row {n:05d}", vector_of(f"good {n:05d}")) for n in range(ROWS)]


def work_of(job: Job, told: dict[str, Any]) -> Work:
    run = RunRef.from_prefix(told["run_prefix"])
    plan = load_plan(job.night.store, run)
    assert plan is not None
    return run.work(plan.uid)


def finish(job: Job, told: dict[str, Any]) -> None:
    """infer, seal and publish."""
    job.compute(RunRef.from_prefix(told["run_prefix"]))
    job.task(SealOperator, told).execute({})
    job.planner.publish(told)


def a_chunk(job: Job, work: Work, *, names: str | None = None) -> bytes:
    """The first chunk, with vectors that no engine gave. names: of keys that the rows do not have."""
    plan = load_plan(job.night.store, work.run)
    assert plan is not None
    # An export has no order: the keys are read where a worker would read them.
    keys = InputReader(job.night.store, work.run, plan, tuple(job.night.spec.source.key)).read(0)
    if names is not None:
        keys = keys.set_column(0, "name", pa.array([names.format(n) for n in range(len(keys))]))
    return _chunk(job.night.spec, work, 0, keys, plan.chunk_range(0), [], [prediction(n) for n in range(ROWS)])


def test_a_night_runs(guarded: Job, storage_client: StorageClient) -> None:
    told = guarded.run()
    guarded.planner.publish(told)

    assert table(guarded) == TRUE
    names = [blob.name for blob in storage_client.list_blobs(guarded.night.settings.bucket)]
    assert {name.partition("/")[0] for name in names} >= {guarded.night.spec.job, "_workers"}


def test_a_redo_and_a_fresh_run_do_too(guarded: Job) -> None:
    first = guarded.run()
    guarded.planner.publish(first)
    again = guarded.run(fresh=True)
    guarded.planner.publish(again)

    assert guarded.shown() == {again["run_id"]: ROWS}


def refused(store: ObjectStore, path: str) -> bool:
    """Whether it may not create the object."""
    try:
        obstore.put(store, path, b"{}", mode="create")
    except PermissionDeniedError:
        return True
    return False


def forgeries(job: Job, run: RunRef) -> dict[str, str]:
    """What Airflow alone decides: of a run that is there or not yet there."""
    return {
        "spec": run.spec_path,
        "decision": run.decision_path("0" * 16),
        "input": run.export_pattern(1).replace("*", "000000000000"),
        "plan": run.plan_path,
        "manifest": run.manifest_path,
        "pause": run.pause_path(1),
        "ending": run.ending_path(1),
        "prompts": run.prompts_path("0" * 16),
        "starts": run.starts_path("night"),
        "speed": "_speeds/model-gpu/0-1-2-3/0000000000-forged.json",
        "chunk in the run's folder": f"{run.prefix}/ledger/chunk-00000000.parquet",
        "another job's chunk": f"_workers/other/{DAY}/{run.run_id}/{'0' * 16}/ledger/chunk-00000000.parquet",
        "a chunk of a job whose name begins like it": f"_workers/{run.job}-2/{DAY}/x/y/ledger/chunk-00000000.parquet",
        "the doctor's": "doctor/0",
    }


@pytest.mark.gate
def test_nothing_that_airflow_decides_can_be_forged(guarded: Job, as_worker: Callable[..., ObjectStore]) -> None:
    """Before the day is triggered, between its tasks, and for tomorrow: run ids can be computed."""
    run, tomorrow = guarded.night.run_of(DAY), guarded.night.run_of(TOMORROW)
    worker = as_worker()

    def tries() -> None:
        for of in (run, tomorrow):
            assert [kind for kind, path in forgeries(guarded, of).items() if not refused(worker, path)] == []

    tries()
    told = guarded.prepare()
    assert told["run_prefix"] == run.prefix
    tries()
    guarded.compute(run)
    tries()
    guarded.task(SealOperator, told).execute({})
    for path in [meta["path"] for meta in obstore.list(worker).collect()]:
        with pytest.raises(PermissionDeniedError):
            obstore.put(worker, path, b"{}")
        with pytest.raises(PermissionDeniedError):
            obstore.delete(worker, path)
    guarded.planner.publish(told)
    assert table(guarded) == TRUE
    with pytest.raises(StoreUnavailable, match=r"storage\.objects\.create"):
        pauses.request_pause(worker, run, paused=True, by="a worker")


@pytest.mark.gate
@pytest.mark.parametrize(("role", "permission"), [("storage.objectViewer", "create"), ("storage.objectCreator", "list")])
def test_airflows_account_without_a_right_fails_plan_at_once(
    guarded: Job, storage_client: StorageClient, role: str, permission: str
) -> None:
    """In the doctor's words: no outage, so no retry."""
    bucket = storage_client.bucket(guarded.night.settings.bucket)
    grant(bucket, (role, AIRFLOW, None))

    with pytest.raises(NightFailed) as failed:
        guarded.prepare()

    who = AIRFLOW.partition(":")[2]
    start = f"{who} does not have storage.objects.{permission} on gs://{bucket.name}/"
    assert str(failed.value).startswith(start)
    assert str(failed.value).endswith(
        f"Fix: gcloud storage buckets add-iam-policy-binding gs://{bucket.name} --member={AIRFLOW} "
        "--role=roles/storage.objectUser --condition=None"
    )
    assert failed.value.entry == Entry.STORE


@pytest.mark.gate
def test_a_condition_that_misses_the_workers_prefix_fails_plan_before_a_machine_is_asked_for(
    guarded: Job, storage_client: StorageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Airflow's account may read the policy; else plan says that it does not know."""
    bucket, said = storage_client.bucket(guarded.night.settings.bucket), list[str]()
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", ANONYMOUS_CONNECTION)
    reading = [("storage.objectViewer", WORKER, None), ("storage.admin", AIRFLOW, None)]
    grant(bucket, *reading, ("storage.objectCreator", WORKER, below(bucket.name, "_worker/")))

    with pytest.raises(
        NightFailed, match=r"sa/nightshift-worker may not create objects below .*/_workers/.* Fix: gcloud storage"
    ):
        check_workers(guarded.night.spec, guarded.night.settings, said.append)
    grant(bucket, *reading, ("storage.objectCreator", WORKER, below(bucket.name, "_workers/")))
    check_workers(guarded.night.spec, guarded.night.settings, said.append)

    assert said == []
    grant(bucket, *reading)
    check_workers(guarded.night.spec, guarded.night.settings, said.append)
    assert [each.partition(":")[0] for each in said] == ["Whether workers may write is not known"]


def odd(work: Work) -> list[str]:
    """Below the worker's prefix, and nothing that the ledger has."""
    return [
        work.partial_path(0, "forged"),
        f"{work.partials_folder(0)}/forged.txt",
        work.mark_path("forged", 0),
        work.mark_path("%2e%2e", 99_999_999),
        work.lost_note_path(0, "forged", 10**9),
        f"_workers/{work.run.prefix}/{'0' * 16}/ledger/chunk-00000000.parquet",
        f"_workers/{work.run.prefix}/plan.json",
        f"{work.prefix}/manifest.json",
        f"{work.prefix}/pauses/00000001.json",
    ]


@pytest.mark.parametrize("what", ["deep JSON", "zeros", "a chunk with other keys"])
def test_odd_objects_below_its_own_prefix_cost_nothing(guarded: Job, as_worker: Callable[..., ObjectStore], what: str) -> None:
    told = guarded.prepare()
    work = work_of(guarded, told)
    bodies = {"deep JSON": b"[" * 100_000, "zeros": b"\0" * (20 << 10)}
    for path in odd(work):
        obstore.put(as_worker(), path, bodies.get(what) or a_chunk(guarded, work, names="other {}"), mode="create")

    finish(guarded, told)

    assert table(guarded) == TRUE


def test_a_chunk_with_rows_of_its_own_is_refused_by_the_seal(guarded: Job, as_worker: Callable[..., ObjectStore]) -> None:
    told = guarded.prepare()
    work = work_of(guarded, told)
    obstore.put(as_worker(), work.chunk_path(0), a_chunk(guarded, work, names="never {:05d}"), mode="create")

    with pytest.raises(Exception, match="has other keys than the rows"):
        finish(guarded, told)
    assert table_is_empty(guarded)


def test_what_is_no_chunk_in_its_ledger_is_refused_by_the_seal(guarded: Job, as_worker: Callable[..., ObjectStore]) -> None:
    told = guarded.prepare()
    work = work_of(guarded, told)
    obstore.put(as_worker(), work.chunk_path(0), b"PAR1", mode="create")

    with pytest.raises(Exception, match="not a chunk"):
        finish(guarded, told)
    assert table_is_empty(guarded)


def table_is_empty(job: Job) -> bool:
    table = job.night.spec.destination.table.rpartition(".")[2]
    return table not in {each.table_id for each in job.night.client.list_tables(job.night.settings.bucket)} or not job.shown()


@pytest.mark.gate
def test_another_jobs_chunk_is_refused_with_an_account_for_each_job(
    guarded: Job, as_worker: Callable[..., ObjectStore]
) -> None:
    told = guarded.prepare()
    work = work_of(guarded, told)
    other = as_worker("other-worker-token")
    obstore.put(other, "_workers/other/2026-11-22/x/y/ledger/chunk-00000000.parquet", b"its own", mode="create")

    for path in (work.chunk_path(0), work.partial_path(0, "a"), work.mark_path("a", 0), work.dead_note_path(0, ROWS)):
        with pytest.raises(PermissionDeniedError):
            obstore.put(other, path, a_chunk(guarded, work), mode="create")
    finish(guarded, told)
    assert table(guarded) == TRUE


@pytest.mark.gate
def test_with_one_account_for_all_jobs_it_is_believed(
    guarded: Job, storage_client: StorageClient, as_worker: Callable[..., ObjectStore]
) -> None:
    """What IAM cannot stop, as the threat model says: the right keys with wrong answers, in a chunk that is still missing."""
    granted(guarded.night, storage_client, each_its_own=False)
    told = guarded.prepare()
    work = work_of(guarded, told)
    obstore.put(as_worker(), work.chunk_path(0), a_chunk(guarded, work), mode="create")
    finish(guarded, told)

    assert [name for name, _ in table(guarded)] == [name for name, _ in TRUE]
    assert table(guarded) != TRUE
    for path in forgeries(guarded, guarded.night.run_of(TOMORROW)).values():
        assert refused(as_worker(), path) != path.startswith("_workers/")
