"""The table of races in docs/operate/warehouse.md: who may replace what a partition shows, whatever retries, wakes up or is
misused."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import obstore
import pytest
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef
from nightshift.run.sealed_objects import SealBroken, check_sealed
from nightshift.store import open_store
from nightshift.warehouse import JobState, WarehouseError, publications
from nightshift.warehouse.statements import Statements
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import PARTITION, Night, opened_at, prediction

pytestmark = pytest.mark.integration

NAMES = ["alpha", "beta", "gamma"]
LATER = "2026-11-22T01:00:00+00:00"


def another_job(night: Night, name: str = "other-job") -> Night:
    """A second job of the same deployment that writes into the same table."""
    return replace(night, spec=night.spec.model_copy(update={"job": name}))


def another_deployment(night: Night, storage_client: StorageClient, *, dataset: str | None = None) -> Night:
    """The same job in another deployment of the project, which shares the destination; by default not the own dataset."""
    bucket = f"{night.settings.bucket}-b"
    storage_client.create_bucket(bucket)
    settings = replace(night.settings, bucket=bucket, dataset=dataset or f"{night.settings.dataset}_b")
    return replace(night, settings=settings, store=open_store(f"gs://{bucket}"))


def refused(night: Night, run: RunRef, manifest: RunManifest, asked_at: str | None = None) -> tuple[str, JobState]:
    """Publishes a run that must not be published: the sentence of the early check, and how the transaction ended."""
    with pytest.raises(WarehouseError) as early:
        night.warehouse.check_may_replace(night.spec, run, asked_at or opened_at(run))
    night.staged(run, manifest, asked_at=asked_at)
    return str(early.value), night.finished(night.replace_partition(run, manifest, asked_at=asked_at))


@pytest.mark.gate
def test_two_jobs_never_share_a_table(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES, dead=[1]))
    before = night.shown(), night.dead_letters()
    other = another_job(night)
    sentence, ended = refused(other, other.run, other.seal(other.run, NAMES[:2]), LATER)

    assert f"holds rows that job other-job has not published (2 of run {night.run.run_id} of job job)" in sentence
    assert "Write another destination.table" in sentence
    assert publications.FOREIGN in str(ended.error)
    assert not ended.retryable
    assert (night.shown(), night.dead_letters()) == before


@pytest.mark.gate
def test_an_id_that_two_deployments_share_does_not_make_their_rows_one_and_the_same(
    night: Night, storage_client: StorageClient
) -> None:
    """The other one has published the same id here, without rows, so it knows the id."""
    other = another_deployment(night, storage_client, dataset=night.settings.dataset)
    assert other.run == night.run
    other.publish(other.run, other.seal(other.run, []))
    night.publish(night.run, night.seal(night.run, NAMES))
    before = night.shown()
    second = other.run_of(PARTITION, generation=2)
    _, ended = refused(other, second, other.seal(second, NAMES[:1]))

    assert publications.FOREIGN in str(ended.error)
    assert night.shown() == before


def test_a_job_that_was_renamed_takes_over_what_a_person_has_deleted(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES))
    renamed = another_job(night, "new-name")
    sentence, _ = refused(renamed, renamed.run, manifest := renamed.seal(renamed.run, NAMES))
    night.rows(sentence.rpartition("delete them: ")[2])
    renamed.publish(renamed.run, manifest)

    assert [row[0] for row in renamed.shown()] == NAMES


def test_rows_that_a_person_has_inserted_are_not_lost(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES))
    night.rows(f"INSERT INTO `{night.destination}` (name, snapshot_date) VALUES ('mine', DATE '{PARTITION}')")
    before = sorted(map(repr, night.shown()))
    second = night.run_of(PARTITION, generation=2)
    sentence, ended = refused(night, second, night.seal(second, NAMES))

    assert "1 without a run" in sentence
    assert publications.FOREIGN in str(ended.error)
    assert sorted(map(repr, night.shown())) == before


@pytest.mark.gate
@pytest.mark.parametrize("shared", [False, True], ids=["own datasets", "one dataset"])
def test_two_deployments_of_one_job_never_replace_each_others_rows(
    night: Night, storage_client: StorageClient, shared: bool
) -> None:
    """Their runs have the same id, and differ in every prediction."""
    night.publish(night.run, night.seal(night.run, NAMES))
    before = night.shown()
    other = another_deployment(night, storage_client, dataset=night.settings.dataset if shared else None)
    sentence, ended = refused(other, other.run, other.seal(other.run, NAMES, bias=8.0), LATER)

    assert f"has not published (3 of run {night.run.run_id}" in sentence
    assert publications.FOREIGN in str(ended.error)
    assert night.shown() == before


@pytest.mark.gate
def test_a_late_generation_never_replaces_a_later_one(night: Night) -> None:
    """Generation 1 is staged, sleeps while generation 2 is published, and wakes up."""
    first, second = night.run, night.run_of(PARTITION, generation=2)
    old, new = night.seal(first, []), night.seal(second, NAMES, dead=[0], bias=8.0)
    night.staged(first, old)
    night.publish(second, new)
    before = night.shown(), night.dead_letters()
    sentence, ended = refused(night, first, old)

    assert f"shows run {second.run_id}, asked for at 2026-11-21T01:00:02+00:00" in sentence
    assert f"trigger it with republish: {first.run_id}" in sentence
    assert publications.LATER in str(ended.error)
    assert (night.shown(), night.dead_letters()) == before


def test_a_retry_of_a_published_run_that_was_replaced_since_changes_nothing(night: Night) -> None:
    first, second = night.run, night.run_of(PARTITION, generation=2)
    old, new = night.seal(first, NAMES), night.seal(second, NAMES, bias=8.0)
    night.publish(first, old)
    night.publish(second, new)
    before = night.shown()
    _, ended = refused(night, first, old)

    assert publications.LATER in str(ended.error)
    assert night.shown() == before


def test_an_empty_later_run_counts_too(night: Night) -> None:
    first, second = night.run, night.run_of(PARTITION, generation=2)
    old = night.seal(first, NAMES)
    night.publish(second, night.seal(second, []))
    _, ended = refused(night, first, old)

    assert publications.LATER in str(ended.error)
    assert night.shown() == []


def test_an_edited_job_races_the_old_one(night: Night) -> None:
    """Both publish at the same moment: the later run stays, whichever comes first."""
    edited = replace(
        night, spec=night.spec.model_copy(update={"model": night.spec.model.model_copy(update={"revision": "r2"})})
    )
    old, new = night.seal(night.run, NAMES, dead=[1]), edited.seal(edited.run, NAMES, dead=[2], bias=8.0)
    night.staged(night.run, old)
    edited.staged(edited.run, new, asked_at=LATER)

    def publish(of: Night, manifest: RunManifest, asked_at: str) -> JobState:
        """As Airflow does: again as long as BigQuery says that another try may help."""
        while (state := of.finished(of.replace_partition(of.run, manifest, asked_at=asked_at))).retryable:
            pass
        return state

    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(publish, night, old, opened_at(night.run))
        fast = pool.submit(publish, edited, new, LATER)
        ends = slow.result(), fast.result()

    assert ends[1].error is None
    assert ends[0].error is None or publications.LATER in ends[0].error
    assert [(row[2], row[4]) for row in night.shown()] == [(prediction(n, 8.0), edited.run.run_id) for n in (0, 1)]
    assert [(row[2], row[3]) for row in night.dead_letters()] == [(edited.run.run_id, 2)]


@pytest.mark.gate
def test_a_run_that_a_person_asks_for_again_is_shown_and_stays(night: Night) -> None:
    first, second = night.run, night.run_of(PARTITION, generation=2)
    old, new = night.seal(first, NAMES, dead=[1]), night.seal(second, NAMES, bias=8.0)
    night.publish(first, old)
    shown = night.shown(), night.dead_letters()
    night.publish(second, new)
    night.publish(first, old, asked_at=LATER)
    _, ended = refused(night, second, new)

    assert publications.LATER in str(ended.error), "the retry of a run that was asked for before that"
    assert (night.shown(), night.dead_letters()) == shown


def test_asking_for_the_run_that_is_shown_keeps_a_run_away_that_was_opened_before(night: Night) -> None:
    first, second = night.run, night.run_of(PARTITION, generation=2)
    old, new = night.seal(first, NAMES), night.seal(second, NAMES, bias=8.0)
    night.publish(first, old)
    night.publish(first, old, asked_at=LATER)
    _, ended = refused(night, second, new)

    assert publications.LATER in str(ended.error)


def test_two_runs_that_were_asked_for_in_the_same_microsecond(night: Night) -> None:
    """The first to publish stays: neither is later."""
    first, second = night.run, night.run_of(PARTITION, generation=2)
    old, new = night.seal(first, NAMES), night.seal(second, NAMES, bias=8.0)
    night.publish(first, old, asked_at=LATER)
    _, ended = refused(night, second, new, LATER)

    assert publications.LATER in str(ended.error)
    night.publish(first, old, asked_at=LATER)


def overwrite(night: Night, path: str) -> None:
    """The same rows under the same name, as another object: nobody who compares rows or digests would see it."""
    body = obstore.get(night.store, path).bytes()
    obstore.put(night.store, path, body)


@pytest.mark.gate
@pytest.mark.parametrize(
    "alter", [overwrite, lambda night, path: obstore.delete(night.store, path)], ids=["overwritten", "gone"]
)
def test_a_chunk_that_was_altered_after_the_seal_is_noticed(night: Night, alter: Callable[[Night, str], None]) -> None:
    manifest = night.seal(night.run, NAMES, per_chunk=1)
    check_sealed(night.store, night.run, manifest)
    alter(night, path := manifest.chunks[1].path)

    with pytest.raises(
        SealBroken, match=f"1 of 3 chunks of run {night.run.run_id} were overwritten or deleted.*: {path}. Nothing"
    ):
        check_sealed(night.store, night.run, manifest)


def test_a_manifest_that_names_no_versions_proves_nothing(night: Night) -> None:
    manifest = night.seal(night.run, NAMES, per_chunk=1)
    manifest = replace(
        manifest, chunks=(manifest.chunks[0], replace(manifest.chunks[1], object_version=None), manifest.chunks[2])
    )

    with pytest.raises(SealBroken, match="is not what the task 'seal' wrote"):
        check_sealed(night.store, night.run, manifest)


def test_a_destination_that_the_query_reads_is_refused(night: Night) -> None:
    """By the table's name, and behind a view, which only the warehouse can see through."""
    table = night.spec.destination.model_copy(update={"table": f"{night.settings.bucket}.source"})
    spec = night.spec.model_copy(update={"destination": table})

    with pytest.raises(WarehouseError, match=r"source is a table that source.query reads.*Write another destination.table"):
        night.warehouse.check_query(spec, PARTITION)


def test_a_script_that_others_have_overtaken_is_written_again(night: Night) -> None:
    """Dead letters appear between its writing and its transaction: it fails, may be tried again, and then deletes them."""
    night.publish(night.run, night.seal(night.run, NAMES))
    own = f"{PROJECT}.{night.settings.dataset}.dead_letters"
    second = night.run_of(PARTITION, generation=2)
    manifest = night.seal(second, NAMES, dead=[0])
    night.staged(second, manifest)
    submit = Statements.submit

    def late(self: Statements, sql: str, *args: Any, **kwargs: Any) -> bigquery.QueryJob:
        if "BEGIN TRANSACTION" in sql:
            values = f"'{night.spec.job}', DATE '{PARTITION}', '{night.settings.bucket}'"
            night.rows(f"INSERT INTO `{own}` (job, partition_date, bucket) VALUES ({values})")
        return submit(self, sql, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Statements, "submit", late)
        ended = night.finished(night.replace_partition(second, manifest))

    assert ended.retryable
    night.succeed(night.replace_partition(second, manifest))
    assert [(row[2], row[3]) for row in night.dead_letters()] == [(second.run_id, 0)]


def test_a_transaction_that_another_one_cancels_is_followed_by_a_job_with_a_new_id(night: Night) -> None:
    """A person's open transaction has updated the destination; then it is rolled back."""
    night.publish(night.run, night.seal(night.run, NAMES))
    held = night.client.query(
        f"BEGIN TRANSACTION; UPDATE `{night.destination}` SET nightshift_ordinal = 7 WHERE TRUE;",
        job_config=bigquery.QueryJobConfig(create_session=True),
    )
    held.result()
    assert held.session_info is not None
    assert held.session_info.session_id is not None
    session = bigquery.ConnectionProperty("session_id", held.session_info.session_id)
    second = night.run_of(PARTITION, generation=2)
    manifest = night.seal(second, NAMES)
    night.staged(second, manifest)

    first = night.replace_partition(second, manifest)
    ended = night.finished(first)
    assert "Transaction is aborted due to concurrent update against table" in str(ended.error)
    assert ended.retryable
    config = bigquery.QueryJobConfig(connection_properties=[session])
    night.client.query("ROLLBACK TRANSACTION", job_config=config).result()
    following = night.replace_partition(second, manifest)

    assert (first[-2:], following[-2:]) == ("-0", "-1")
    night.succeed(following)
    assert {row[-2] for row in night.shown()} == {second.run_id}
