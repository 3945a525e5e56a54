"""Only the dead letters again: which rows a redo has, what it proves, and what it refuses."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from obstore.store import MemoryStore

from nightshift.driver.attribution import Canary
from nightshift.driver.codec import ParquetCodec
from nightshift.driver.known_good_rows import Completed, answered_row, recalled
from nightshift.operators.extract import ExtractOperator
from nightshift.operators.redo import open_again, take_rows
from nightshift.planner.decisions import save_decision
from nightshift.planner.plan import decide
from nightshift.planner.speed import Known, tokens_of
from nightshift.run import opening
from nightshift.run.inputs import InputReader
from nightshift.run.manifest import RunManifest, load_manifest
from nightshift.run.names import RunRef, Work, canonical_json
from nightshift.run.opening import load_run, open_run
from nightshift.run.order import Order
from nightshift.run.plan import ExportedSource, Plan, load_plan, save_plan
from nightshift.run.redo import redo_rows
from nightshift.run.redo.redo import NothingToRedo, NotRedone, Redo
from nightshift.run.seal import ConservationError, seal
from nightshift.run.sealed_objects import SealBroken, check_whole, whole
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.tasks.base import load_kind
from nightshift.warehouse import publish
from nightshift.warehouse.extract import build_plan
from tests.builders import a_chunk, a_fix, a_spec, bound, opening_of, write_input

pytestmark = pytest.mark.unit

DAY = "2026-11-20"
SPEC = a_spec(dead_letters__tolerate="50%")
TEXTS = [f"text {number}" for number in range(20)]
SOURCE = ExportedSource({"id": "INT64", "text": "STRING"}, ("p.d.t",))
SETTINGS = Settings(bucket="b", project="p")


class Bucket:
    """A bucket, and a warehouse that shows the run `shown` and has published those of `published`."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.shown: RunRef | None = None
        self.published: set[RunRef] = set()
        self.obstacle: str | None = None
        self.warehouse: Any = SimpleNamespace(
            shown_run=lambda spec, run: self.shown and self.shown.run_id,
            check_destination=lambda spec, source: None,
            obstacle=lambda spec, run, asked_at, completes: self.obstacle,
            has_published=lambda spec, run: run in self.published,
            asked_last=lambda spec, run: None,
        )

    def night(self, dead: Sequence[int], *, rows: int = len(TEXTS), seal_it: bool = True, order: Order | None = None) -> RunRef:
        """A run of all rows, with these dead letters, that the partition shows."""
        run = open_run(self.store, SPEC, DAY, opened_by=f"night after {self.shown}", fresh=self.shown is not None)
        files = write_input(self.store, run, TEXTS[:rows], per_file=8, per_group=3)
        planned = Plan(run.run_id, rows, 4, 1, files, source=SOURCE, order=order)
        plan = save_plan(self.store, run, bound(self.store, run, planned))
        self.compute(run, plan, dead)
        if seal_it:
            seal(self.store, run, SPEC, plan)
        self.shown = run
        return run

    def compute(self, run: RunRef, plan: Plan, dead: Sequence[int], width: int = 2) -> None:
        for chunk in range(plan.chunk_count):
            gone = [ordinal for ordinal in plan.chunk_range(chunk) if ordinal in dead]
            ids = InputReader(self.store, run, plan, ("id",)).read(chunk).column("id").to_pylist()
            body = a_chunk(run, plan, chunk, dead=gone, ids=ids, width=width)
            obstore.put(self.store, run.work(plan.uid).chunk_path(chunk), body, mode="create")

    def redo(self, opener: str = "redo", spec: JobSpec = SPEC) -> RunRef:
        """The tasks plan and extract."""
        run = open_again(self.store, self.warehouse, spec, DAY, opener)
        redo = self.what(run)
        if load_plan(self.store, run) is None:
            source = take_rows(self.store, run, redo).exported
            opening = opening_of(self.store, run)
            build_plan(
                self.store, run, SPEC, source, fix=a_fix(SPEC), opening=opening, rows=redo.left, attempt=redo_rows.WRITTEN
            )
        return run

    def what(self, run: RunRef) -> Redo:
        redo = load_run(self.store, run)[1].redo
        assert redo is not None
        return redo

    def seal(self, run: RunRef, dead: Sequence[int] = (), width: int = 2) -> RunManifest:
        """The tasks infer and seal of a redo. width: of its vectors."""
        plan, redo = self.plan(run), self.what(run)
        self.compute(run, plan, dead, width)
        return seal(self.store, run, redo.terms(SPEC), plan, redo=redo)

    def plan(self, run: RunRef) -> Plan:
        plan = load_plan(self.store, run)
        assert plan is not None
        return plan

    def work(self, run: RunRef) -> Work:
        """What the run's workers write."""
        return run.work(self.plan(run).uid)

    def rows(self, run: RunRef) -> list[dict[str, Any]]:
        """Everything that the planned files hold."""
        bodies = [bytes(obstore.get(self.store, f"{run.prefix}/{file.path}").bytes()) for file in self.plan(run).files]
        return [row for body in bodies for row in pq.read_table(io.BytesIO(body)).to_pylist()]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def test_its_rows_are_the_dead_letters_as_they_were_exported(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever chunks, files and row groups hold them, and however many files they become."""
    monkeypatch.setattr(redo_rows, "FILE_BYTES", 1)
    dead = [0, 2, 7, 8, 15, 19]
    first = bucket.night(dead)

    run = bucket.redo()

    assert (run.digest, run.generation) == (first.digest, 2)
    assert [row["id"] for row in bucket.rows(run)] == dead
    assert [row["text"] for row in bucket.rows(run)] == [TEXTS[each] for each in dead]
    assert [row[redo_rows.ORDINAL] for row in bucket.rows(run)] == dead
    assert len(bucket.plan(run).files) == 5, "one for each chunk with dead letters"
    assert bucket.plan(run).source == SOURCE
    assert bucket.what(run) == Redo(first.run_id, bucket.what(run).manifest_digest, 20, 6, shown=first.run_id)


def test_the_rows_keep_their_order_and_the_plan_says_so(bucket: Bucket) -> None:
    order = Order(("text",), 3, 1, "ordered by text")
    bucket.night(dead=[3, 11, 12], order=order)
    run = open_again(bucket.store, bucket.warehouse, SPEC, DAY, "redo")
    stated = a_spec(compute__workers=1)
    path = save_decision(bucket.store, run, decide(stated, 3, Known(tokens_of(stated))))
    with DAG("job", schedule=None):
        task = ExtractOperator(task_id="extract", run_prefix=run.prefix, terms="", decision=path)
    task.__dict__.update(settings=SETTINGS, store=bucket.store)

    task.execute({})

    plan = load_plan(bucket.store, run)
    assert plan is not None
    assert (plan.rows, plan.order) == (3, order)


def test_a_published_redo_is_not_the_next_request_of_the_same_dag_run(bucket: Bucket) -> None:
    """A backfill with --reprocess-behavior completed uses the DAG run again."""
    bucket.night([3, 4, 5])
    first = bucket.redo()
    bucket.seal(first, dead=[1])
    assert bucket.redo() == first, "a clear of a redo that is not published"

    bucket.shown = first
    bucket.published = {first}
    second = bucket.redo()

    assert (second.generation, bucket.what(second).run_id) == (3, first.run_id)
    assert bucket.redo() == second
    bucket.seal(second)
    bucket.shown = second
    bucket.published = {first, second}
    with pytest.raises(NothingToRedo):
        bucket.redo()


def test_a_redo_of_a_run_that_is_shown_again_is_computed_again_for_the_same_dag_run(bucket: Bucket) -> None:
    night = bucket.night([3, 4, 5])
    first = bucket.redo()
    bucket.seal(first)
    bucket.published = {night, first}
    bucket.obstacle = "the night was asked for later, with republish"

    second = bucket.redo()

    assert (second.generation, bucket.what(second).run_id) == (3, night.run_id)


def test_the_partition_is_the_earlier_predictions_and_the_new_ones(bucket: Bucket) -> None:
    first = bucket.night([3, 4, 5])
    run = bucket.redo()

    manifest = bucket.seal(run, dead=[1])

    assert (manifest.rows, manifest.predictions, manifest.dead_letters) == (3, 2, 1)
    assert manifest.totals._asdict() == {"rows": 20, "predictions": 19, "dead_letters": 1}
    assert [each.run_id for each in manifest.completes] == [first.run_id]
    all_of_it = whole(bucket.store, run, manifest, bucket.what(run))
    check_whole(bucket.store, run, all_of_it)
    own, earlier = publish.parts(run, all_of_it, SETTINGS)
    assert [each.suffix for each in (own, earlier)] == ["", "_1"]
    assert earlier.tables[0][1] == [f"gs://b/{bucket.work(first).chunk_path(number)}" for number in range(5)]
    assert len({name for part in (own, earlier) for name, _ in part.tables}) == 2, "a staging table each"


def test_a_redo_of_a_redo_has_what_is_still_dead(bucket: Bucket) -> None:
    first = bucket.night([3, 4, 9])
    second = bucket.redo("second")
    bucket.seal(second, dead=[0, 2])
    bucket.shown = second

    third = bucket.redo("third")
    manifest = bucket.seal(third, dead=[1])

    assert [row["id"] for row in bucket.rows(third)] == [3, 9]
    assert [row[redo_rows.ORDINAL] for row in bucket.rows(third)] == [0, 2]
    assert [each.run_id for each in manifest.completes] == [second.run_id, first.run_id]
    assert manifest.totals._asdict() == {"rows": 20, "predictions": 19, "dead_letters": 1}
    assert len(whole(bucket.store, third, manifest, bucket.what(third)).earlier) == 2


def test_a_repeat_finds_the_redo_whatever_the_partition_shows_now(bucket: Bucket) -> None:
    bucket.night([3])
    run = bucket.redo()
    bucket.seal(run)
    bucket.shown = run

    assert bucket.redo() == run
    with pytest.raises(NothingToRedo, match="there is nothing to compute again"):
        bucket.redo("another")


def test_two_who_ask_for_it_at_once_get_one_redo(bucket: Bucket) -> None:
    """Two would compute the same rows, and the later one would take away what the other one had answered."""
    bucket.night([3, 4])
    run = bucket.redo("one")

    assert bucket.redo("another") == run
    bucket.seal(run, dead=[1])
    assert bucket.redo("a third, before it is published") == run


@pytest.mark.parametrize("looks", ["together", "one after the other"])
def test_clicks_within_a_second_are_one_redo(bucket: Bucket, looks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have looked before one has opened it; they create it together, or see it when they are about to."""
    bucket.night([3, 4])
    seen = opening._records_of(bucket.store, SPEC.job, DAY)
    monkeypatch.setattr("nightshift.operators.redo._unpublished", lambda *_, **__: None)
    if looks == "together":
        monkeypatch.setattr(opening, "_records_of", lambda *_: dict(seen))

    runs = {bucket.redo(opener) for opener in ("one", "two", "three", "four")}

    assert [run.generation for run in runs] == [2]
    monkeypatch.undo()
    assert len(opening._records_of(bucket.store, SPEC.job, DAY)) == 2


def test_a_redo_that_may_not_be_published_any_more_is_followed_by_another(bucket: Bucket) -> None:
    """A person had the earlier run shown again."""
    bucket.night([3, 4])
    run = bucket.redo("one")
    bucket.obstacle = "shows a run that was asked for later"

    assert bucket.redo("another").generation == run.generation + 1


def test_a_redo_is_not_the_redo_of_a_run_that_was_computed_again_or_after_which_others_were_opened(bucket: Bucket) -> None:
    first = bucket.night([3, 4])
    bucket.redo("one")
    second = bucket.night([5])

    third = bucket.redo("another")

    assert bucket.what(third).run_id == second.run_id
    bucket.shown, bucket.obstacle = first, "the first night was asked for later, with republish"
    assert bucket.redo("one more").generation == third.generation + 1


def test_a_repeat_after_the_job_was_changed_says_what_changed(bucket: Bucket) -> None:
    bucket.night([3])
    run = bucket.redo()

    with pytest.raises(NotRedone, match=rf"than run {run.run_id}: request\.input changed\."):
        bucket.redo(spec=a_spec(dead_letters__tolerate="50%", request__input="{{ text }}!"))


def test_a_redo_keeps_the_pins_and_the_seeds_of_the_earlier_run(bucket: Bucket) -> None:
    first = bucket.night([3])
    run = bucket.redo()

    before, after = load_run(bucket.store, first)[1], load_run(bucket.store, run)[1]

    for name in ("pinned", "rendering", "seeds", "semantic"):
        assert after.stored[name] == before.stored[name]
    assert after.opened > before.opened


def test_a_later_dag_run_without_params_goes_on_with_the_redo(bucket: Bucket) -> None:
    bucket.night([3])
    run = bucket.redo()

    assert open_run(bucket.store, SPEC, DAY, opened_by="the next night") == run


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"request__input": "{{ text }}!", "engine__max_num_seqs": 16}, r"request\.input"),
        ({"engine__args": {"seed": 7}}, r"engine\.args"),
    ],
)
def test_a_job_that_asks_for_other_answers_is_refused_with_what_changed(
    bucket: Bucket, change: dict[str, Any], changed: str
) -> None:
    first = bucket.night([3])

    with pytest.raises(NotRedone, match=rf"than run {first.run_id}: {changed} changed\. .*trigger with fresh"):
        bucket.redo(spec=a_spec(dead_letters__tolerate="50%", **change))


def test_terms_that_do_not_affect_answers_may_change(bucket: Bucket) -> None:
    bucket.night([3])

    run = bucket.redo(spec=a_spec(engine__max_num_seqs=16, deadline="3h"))

    assert load_run(bucket.store, run)[0].engine.max_num_seqs == 16


def test_a_share_of_dead_letters_is_one_of_the_partition(bucket: Bucket) -> None:
    """Half of three rows would be one."""
    bucket.night([3, 4, 5])
    run = bucket.redo()

    assert bucket.what(run).terms(SPEC).dead_letters.tolerate == 10
    assert bucket.seal(run, dead=[0, 1, 2]).dead_letters == 3


def test_the_tolerance_holds_for_what_is_still_dead(bucket: Bucket) -> None:
    bucket.night([3, 4, 5])
    run = bucket.redo()
    plan, redo = bucket.plan(run), bucket.what(run)
    bucket.compute(run, plan, [0, 1])

    with pytest.raises(ToleranceExceeded, match="2 of 3 rows are dead letters"):
        seal(bucket.store, run, redo.terms(a_spec(dead_letters__tolerate="5%")), plan, redo=redo)


def test_a_partition_without_a_run_is_refused(bucket: Bucket) -> None:
    with pytest.raises(NotRedone, match="shows no run of job job"):
        bucket.redo()


def test_a_run_that_is_not_sealed_is_refused(bucket: Bucket) -> None:
    bucket.night([3], seal_it=False)

    with pytest.raises(NotRedone, match="is not sealed"):
        bucket.redo()


@pytest.mark.parametrize("gone", ["deleted", "overwritten"])
def test_rows_that_are_gone_are_refused_before_a_run_is_opened(bucket: Bucket, gone: str) -> None:
    run = bucket.night([3])
    path = f"{run.prefix}/{bucket.plan(run).files[1].path}"
    if gone == "deleted":
        obstore.delete(bucket.store, path)
    else:
        obstore.put(bucket.store, path, b"other")

    with pytest.raises(NotRedone, match=r"are gone.*part-001\.parquet.*fresh.*lifecycle"):
        bucket.redo()
    assert open_run(bucket.store, SPEC, DAY, opened_by="x") == run, "no other run was opened"


def test_an_earlier_run_whose_chunks_are_gone_is_refused(bucket: Bucket) -> None:
    run = bucket.night([3])
    obstore.delete(bucket.store, bucket.work(run).chunk_path(4))

    with pytest.raises(SealBroken, match="overwritten or deleted"):
        bucket.redo()


def test_rows_that_are_not_the_dead_letters_are_not_sealed(bucket: Bucket) -> None:
    bucket.night([3, 4])
    run = bucket.redo()
    plan = bucket.plan(run)
    (file,) = plan.files
    path = f"{run.prefix}/{file.path}"
    table = pq.read_table(io.BytesIO(bytes(obstore.get(bucket.store, path).bytes())))
    sink = io.BytesIO()
    pq.write_table(table.take([1, 0]), sink)
    obstore.put(bucket.store, path, sink.getvalue())
    meta = obstore.head(bucket.store, path)
    other = replace(plan, files=(replace(file, size=meta["size"], etag=str(meta["e_tag"])),))
    bucket.compute(run, other, [])

    with pytest.raises(NotRedone, match=r"Row 0 of run .* is row 4 of run .*, whose next row without an answer is row 3"):
        seal(bucket.store, run, SPEC, other, redo=bucket.what(run))
    assert load_manifest(bucket.store, run) is None


@pytest.mark.parametrize("gone", [False, True], ids=["sealed again", "gone"])
def test_a_redo_of_a_run_that_is_no_more_what_it_was_is_not_sealed(bucket: Bucket, gone: bool) -> None:
    """Also if it has the same dead letters: nobody has shown its answers beside those of the redo."""
    first = bucket.night([3])
    run = bucket.redo()
    manifest = load_manifest(bucket.store, first)
    assert manifest is not None
    obstore.delete(bucket.store, first.manifest_path)
    if not gone:
        again = replace(manifest, sealed_at="2026-11-22T03:00:00+00:00")
        obstore.put(bucket.store, first.manifest_path, canonical_json(again.to_json()))

    with pytest.raises(NotRedone, match="is not the run any more whose rows without an answer run"):
        bucket.seal(run)
    assert load_manifest(bucket.store, run) is None


def test_runs_that_do_not_add_up_to_the_partition_are_not_sealed(bucket: Bucket) -> None:
    bucket.night([3])
    run = bucket.redo()
    bucket.compute(run, bucket.plan(run), [])

    with pytest.raises(NotRedone, match="do not add up"):
        seal(bucket.store, run, SPEC, bucket.plan(run), redo=replace(bucket.what(run), rows=21))


def test_vectors_of_another_length_than_those_that_it_completes_are_not_sealed(bucket: Bucket) -> None:
    """One partition would hold the vectors of two models. The run between has no answers, so it shows no length."""
    first = bucket.night([3, 4])
    second = bucket.redo("second")
    bucket.seal(second, dead=[0, 1])
    bucket.shown = second
    third = bucket.redo("third")

    with pytest.raises(
        ConservationError, match=rf"\(2 in {bucket.work(first).chunk_path(0)}, 3 in {bucket.work(third).chunk_path(0)}\)"
    ):
        bucket.seal(third, width=3)
    assert load_manifest(bucket.store, third) is None


def completed(bucket: Bucket, run: RunRef) -> Completed:
    codec = ParquetCodec(run_id="", attempt="", node="", model={}, engine_version="", prediction_type=pa.string())
    return partial(answered_row, bucket.store, run, bucket.what(run), load_kind(SPEC), codec)


def test_a_row_that_the_completed_run_answered_can_be_sent_beside_rows_that_all_fail_again(bucket: Bucket) -> None:
    """So that these are judged, and not the engine. Of a redo without answers: of the run that it completes."""
    bucket.night([0, 1, 2, 3, 4, 6])
    second = bucket.redo("second")
    assert completed(bucket, second)() == (5, {"text": TEXTS[5]})
    bucket.seal(second, dead=list(range(6)))
    bucket.shown = second

    third = bucket.redo("third")

    assert completed(bucket, third)() == (5, {"text": TEXTS[5]})


@pytest.mark.parametrize("gone", ["manifest_path", "plan_path", "chunk"])
def test_without_what_the_completed_run_has_left_no_row_is_found(bucket: Bucket, gone: str) -> None:
    first = bucket.night([3])
    run = bucket.redo()
    obstore.delete(bucket.store, bucket.work(first).chunk_path(0) if gone == "chunk" else getattr(first, gone))

    assert completed(bucket, run)() is None


@pytest.mark.parametrize("gone", [False, True])
def test_a_worker_that_has_had_no_answer_takes_its_canary_from_there(bucket: Bucket, gone: bool) -> None:
    first = bucket.night([0, 1, 2, 3])
    run = bucket.redo()
    if gone:
        obstore.put(bucket.store, f"{first.prefix}/{bucket.plan(first).files[0].path}", b"other")

    async def nothing(*_: Any) -> None:
        return None

    async def request(payloads: list[Any], _: int) -> Canary:
        return Canary("path", b"body", payloads)

    worker: Any = SimpleNamespace(answered_elsewhere=nothing, answered_before=lambda: None, request=request)
    found = asyncio.run(recalled(load_kind(SPEC), worker, worker, worker, completed(bucket, run)))

    assert found == (None if gone else Canary("path", b"body", [load_kind(SPEC).render({"text": TEXTS[4]}, 4)]))


def test_a_redo_that_is_sealed_as_another_run_is_not_published(bucket: Bucket) -> None:
    """It would show its few rows as the whole partition."""
    bucket.night([3])
    run = bucket.redo()
    bucket.compute(run, bucket.plan(run), [])
    manifest = seal(bucket.store, run, SPEC, bucket.plan(run))

    with pytest.raises(SealBroken, match="do not agree on the run that this one completes"):
        whole(bucket.store, run, manifest, bucket.what(run))


def test_an_earlier_run_that_was_computed_again_is_not_published(bucket: Bucket) -> None:
    first = bucket.night([3])
    run = bucket.redo()
    manifest = bucket.seal(run)
    sealed = load_manifest(bucket.store, first)
    assert sealed is not None
    again = replace(sealed, sealed_at="2026-11-22T03:00:00+00:00")
    obstore.put(bucket.store, first.manifest_path, canonical_json(again.to_json()))

    with pytest.raises(SealBroken, match="is not the one that run"):
        whole(bucket.store, run, manifest, bucket.what(run))
