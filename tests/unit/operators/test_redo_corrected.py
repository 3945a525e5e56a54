"""A redo of a night that failed, and one with corrected rows or a corrected job: what it computes, proves and refuses."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.operators.redo import CORRECTED, DEAD_LETTERS, open_again
from nightshift.run.manifest import load_manifest
from nightshift.run.names import RunRef, canonical_json, run_digest
from nightshift.run.opening import load_run, open_run
from nightshift.run.plan import ExportedSource, Plan, load_plan, save_plan
from nightshift.run.redo import corrected_rows
from nightshift.run.redo.corrected_rows import NotMatched, exported, take_corrected
from nightshift.run.redo.redo import NotRedone
from nightshift.run.redo.redo_rows import ORDINAL, WRITTEN, key_bytes
from nightshift.run.seal import close, seal
from nightshift.run.sealed_objects import SealBroken, check_whole, whole
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.spec import JobSpec
from nightshift.warehouse import publish
from nightshift.warehouse.extract import build_plan
from tests.builders import a_chunk, a_fix, a_spec, bound, opening_of, write_input
from tests.unit.operators.test_redo import DAY, SETTINGS, SOURCE, TEXTS
from tests.unit.operators.test_redo import Bucket as Redone

pytestmark = pytest.mark.unit

STRICT = a_spec(dead_letters__tolerate="5%")
"""One row of 20 may be dead."""
EDITED = a_spec(dead_letters__tolerate="5%", request__input="{{ text }}!")


class Bucket(Redone):
    """source: the texts that the query returns now, by id; a list of several rows of one id."""

    def __init__(self) -> None:
        super().__init__()
        self.source: dict[int, str | list[str]] = dict(enumerate(TEXTS))
        self.columns = SOURCE
        self.warehouse.check_query = lambda spec, partition: self.columns

    def failed(self, dead: Sequence[int], *, spec: JobSpec = STRICT, chunks: Sequence[int] | None = None) -> RunRef:
        """A night of 20 rows in 5 chunks that its tolerance stopped. chunks: that were committed; by default all."""
        run = open_run(self.store, spec, DAY, opened_by="night", project="p", fresh=self.shown is not None)
        files = write_input(self.store, run, TEXTS, per_file=8, per_group=3)
        plan = save_plan(self.store, run, bound(self.store, run, Plan(run.run_id, 20, 4, 1, files, source=SOURCE)))
        self.compute(run, plan, dead)
        for chunk in set(range(5)) - set(range(5) if chunks is None else chunks):
            obstore.delete(self.store, run.work(plan.uid).chunk_path(chunk))
        if chunks is None:
            with pytest.raises(ToleranceExceeded, match="Trigger the DAG with redo to compute only"):
                seal(self.store, run, spec, plan)
        return run

    def again(self, opener: str = "redo", spec: JobSpec = STRICT, how: str = DEAD_LETTERS) -> RunRef:
        """The tasks plan and extract."""
        run = open_again(self.store, self.warehouse, spec, DAY, opener, how=how, project="p")
        if load_plan(self.store, run) is not None or how == DEAD_LETTERS:
            return self.redo(opener, spec)
        redo = self.what(run)
        if not exported(self.store, run, self.attempts(run)):
            self.export(run)
        take_corrected(self.store, run, redo, spec.source.key, self.columns.columns, attempt=self.attempts(run))
        opening = opening_of(self.store, run)
        build_plan(self.store, run, spec, self.columns, fix=a_fix(spec), opening=opening, rows=redo.left, attempt=WRITTEN)
        return run

    def corrected(self, opener: str = "redo", spec: JobSpec = STRICT) -> RunRef:
        return self.again(opener, spec, CORRECTED)

    def attempts(self, run: RunRef) -> int:
        """Of the export, so far; they count from 1 here."""
        paths = [each["path"] for each in obstore.list(self.store, run.source_folder).collect()]
        return max((run.parse_source(path) or 0 for path in paths), default=0)

    def export(self, run: RunRef) -> None:
        """What BigQuery writes, in another order than the night's."""
        attempt = 1 + self.attempts(run)
        rows = [(key, text) for key, texts in self.source.items() for text in ([texts] if isinstance(texts, str) else texts)][
            ::-1
        ]
        table = pa.table({"id": pa.array([key for key, _ in rows], pa.int64()), "text": [text for _, text in rows]})
        for part, start in enumerate(range(0, len(rows), 7)):
            body = io.BytesIO()
            pq.write_table(table.slice(start, 7), body, row_group_size=3)
            obstore.put(self.store, run.source_pattern(attempt).replace("*", str(part)), body.getvalue())

    def finish(self, run: RunRef, dead: Sequence[int] = (), spec: JobSpec = STRICT) -> Any:
        """The tasks infer and seal. dead: ordinals of the redo."""
        plan, redo = self.plan(run), self.what(run)
        self.compute(run, plan, dead)
        return seal(self.store, run, redo.terms(spec), plan, redo=redo)

    def published_rows(self, run: RunRef, manifest: Any) -> list[tuple[str, int]]:
        """What the partition shows: run and ordinal of each row, by the chunks that would be loaded."""
        sealed = whole(self.store, run, manifest, self.what(run))
        check_whole(self.store, run, sealed)
        found = []
        for part in publish.parts(run, sealed, SETTINGS):
            for chunk in part.manifest.chunks:
                body = bytes(obstore.get(self.store, chunk.path).bytes())
                table = pq.read_table(io.BytesIO(body), columns=["ordinal", "dead_reason"])
                found += [(part.manifest.run_id, row["ordinal"]) for row in table.to_pylist() if row["dead_reason"] is None]
        return found


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def ids(bucket: Bucket, run: RunRef) -> list[int]:
    return [row["id"] for row in bucket.rows(run)]


class TestANightThatFailed:
    def test_its_dead_letters_are_computed_again_and_published_with_its_answers(self, bucket: Bucket) -> None:
        night = bucket.failed([3, 4, 9])

        run = bucket.again()

        assert ids(bucket, run) == [3, 4, 9]
        assert (run.digest, run.generation) == (night.digest, 2)
        assert bucket.what(run).shown == ""
        manifest = bucket.finish(run, dead=[1])
        assert manifest.totals._asdict() == {"rows": 20, "predictions": 19, "dead_letters": 1}
        assert len(bucket.published_rows(run, manifest)) == 19
        assert load_manifest(bucket.store, night) is None, "it is not sealed, so no trigger publishes it"

    def test_what_it_had_not_committed_is_the_redos_too(self, bucket: Bucket) -> None:
        """Its tolerance stopped it when two chunks were committed."""
        night = bucket.failed([0, 9], chunks=[0, 2])

        run = bucket.again()

        assert ids(bucket, run) == [0, *range(4, 8), 9, *range(12, 20)]
        assert (bucket.what(run).dead_letters, bucket.what(run).unanswered) == (2, 12)
        manifest = bucket.finish(run)
        assert manifest.totals._asdict() == {"rows": 20, "predictions": 20, "dead_letters": 0}
        assert sorted(bucket.published_rows(run, manifest)) == sorted(
            [(night.run_id, n) for n in (1, 2, 3, 8, 10, 11)] + [(run.run_id, n) for n in range(14)]
        )

    def test_a_chunk_that_a_late_worker_commits_does_not_count(self, bucket: Bucket) -> None:
        """Its rows are the redo's by then: they would be there twice."""
        night = bucket.failed([0, 9], chunks=[0, 2])
        run = bucket.again()
        late = a_chunk(night, bucket.plan(night), 1, ids=range(4, 8))
        obstore.put(bucket.store, bucket.work(night).chunk_path(1), late, mode="create")

        manifest = bucket.finish(run)

        assert len(set(bucket.published_rows(run, manifest))) == 20
        assert bucket.again("another") == run

    def test_another_request_finds_the_same_redo_and_the_same_closing(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        night = bucket.failed([0, 9], chunks=[0, 2])
        run = bucket.again("one")

        assert bucket.again("another") == run
        spec, record = load_run(bucket.store, night)
        plan = bucket.plan(night)
        closings = []
        for hour in (1, 2):
            # Written twice within one second they would be equal in any case.
            clock = SimpleNamespace(now=lambda zone, hour=hour: datetime(2026, 11, 21, hour, tzinfo=zone))
            monkeypatch.setattr("nightshift.run.seal.datetime", clock)
            closings.append(close(bucket.store, night, spec, plan, record.pins, None).to_json())
        assert closings[0] == closings[1]

    def test_a_redo_that_failed_too_is_redone(self, bucket: Bucket) -> None:
        """The partition is then of three runs."""
        night = bucket.failed([3, 4, 9])
        second = bucket.again("one")
        plan = bucket.plan(second)
        bucket.compute(second, plan, [0, 2])
        with pytest.raises(ToleranceExceeded, match="the job tolerates 1"):
            seal(bucket.store, second, bucket.what(second).terms(STRICT), plan, redo=bucket.what(second))

        third = bucket.again("another")

        assert ids(bucket, third) == [3, 9]
        manifest = bucket.finish(third)
        assert [each.run_id for each in manifest.completes] == [second.run_id, night.run_id]
        assert len(bucket.published_rows(third, manifest)) == 20

    @pytest.mark.parametrize("chunks", [[0, 2], []])
    def test_a_night_that_may_go_on_is_refused(self, bucket: Bucket, chunks: list[int]) -> None:
        bucket.failed([0], chunks=chunks)

        with pytest.raises(NotRedone, match="Trigger the DAG without redo"):
            bucket.again()

    def test_the_day_that_is_shown_is_redone_while_a_fresh_run_may_go_on(self, bucket: Bucket) -> None:
        first = bucket.night([3])
        bucket.published = {first}
        bucket.failed([0], chunks=[0])

        run = bucket.again(spec=a_spec(dead_letters__tolerate="50%"))

        assert (bucket.what(run).run_id, bucket.what(run).shown) == (first.run_id, first.run_id)

    def test_a_fresh_run_that_failed_is_redone_and_what_is_shown_is_what_it_replaces(self, bucket: Bucket) -> None:
        first = bucket.night([3])
        bucket.published = {first}
        fresh = bucket.failed([0, 1])

        run = bucket.again()

        assert (bucket.what(run).run_id, bucket.what(run).shown) == (fresh.run_id, first.run_id)

    def test_a_redo_that_failed_is_not_redone_once_the_day_shows_another_run(self, bucket: Bucket) -> None:
        """It would take away that one's answers."""
        bucket.failed([3, 4, 9])
        second = bucket.again("one")
        bucket.compute(second, bucket.plan(second), [0, 2])
        sealed = bucket.night([7, 8])
        bucket.published = {sealed}
        later = load_run(bucket.store, second)[1].stored
        obstore.put(bucket.store, second.spec_path, canonical_json({**later, "opened_at": "2999-01-01T00:00:00+00:00"}))

        run = bucket.again("another", spec=a_spec(dead_letters__tolerate="50%"))

        assert (bucket.what(run).run_id, bucket.what(run).shown) == (sealed.run_id, sealed.run_id)

    def test_a_closing_that_was_replaced_is_not_published(self, bucket: Bucket) -> None:
        night = bucket.failed([3, 4])
        run = bucket.again()
        manifest = bucket.finish(run)
        path = night.closed_path(bucket.what(run).manifest_digest)
        obstore.put(bucket.store, path, bytes(obstore.get(bucket.store, path).bytes()).replace(b'"rows":20', b'"rows":19'))

        with pytest.raises(SealBroken, match="is not the one that run"):
            whole(bucket.store, run, manifest, bucket.what(run))


class TestCorrectedRows:
    def test_they_are_the_sources_rows_with_the_keys_of_the_dead(self, bucket: Bucket) -> None:
        night = bucket.failed([3, 4, 9])
        bucket.source |= {3: "mended 3", 4: "mended 4", 7: "changed, but answered", 99: "new"}

        run = bucket.corrected()

        assert {row["id"]: row["text"] for row in bucket.rows(run)} == {3: "mended 3", 4: "mended 4", 9: TEXTS[9]}
        assert {row["id"]: row[ORDINAL] for row in bucket.rows(run)} == {3: 3, 4: 4, 9: 9}
        manifest = bucket.finish(run)
        assert manifest.totals._asdict() == {"rows": 20, "predictions": 20, "dead_letters": 0}
        assert len(bucket.published_rows(run, manifest)) == 20
        assert [each.run_id for each in manifest.completes] == [night.run_id]

    def test_of_a_night_that_was_stopped_early_they_are_all_that_it_left(self, bucket: Bucket) -> None:
        bucket.failed([0, 9], chunks=[0, 2])

        run = bucket.corrected()

        assert sorted(ids(bucket, run)) == [0, *range(4, 8), 9, *range(12, 20)]
        assert bucket.finish(run).totals.predictions == 20

    def test_of_the_day_that_is_shown(self, bucket: Bucket) -> None:
        bucket.night([3, 4])
        bucket.source[3] = "mended 3"

        run = bucket.corrected(spec=a_spec(dead_letters__tolerate="50%"))

        assert {row["id"]: row["text"] for row in bucket.rows(run)} == {3: "mended 3", 4: TEXTS[4]}

    @pytest.mark.parametrize(
        ("gone", "said"),
        [
            ([4], r"1 row without an answer is missing in the source as it is now: \(id: 4\)\. Put them back"),
            ([3, 4, 9, 12], r"4 rows without an answer are missing .*: \(id: 3\), \(id: 4\), \(id: 9\), \.\.\.\. Put"),
        ],
    )
    def test_a_key_that_the_source_lacks_is_refused(self, bucket: Bucket, gone: list[int], said: str) -> None:
        bucket.failed([3, 4, 9, 12])
        for key in gone:
            del bucket.source[key]

        with pytest.raises(NotMatched, match=said):
            bucket.corrected()

    def test_once_it_is_back_the_same_redo_goes_on(self, bucket: Bucket) -> None:
        """It has exported the source as it was; another try exports it again."""
        bucket.failed([3, 4])
        del bucket.source[4]
        with pytest.raises(NotMatched):
            bucket.corrected("one")
        bucket.source[4] = "back"

        run = bucket.corrected("another")

        assert (run.generation, {row["id"]: row["text"] for row in bucket.rows(run)}) == (2, {3: TEXTS[3], 4: "back"})

    def test_a_key_that_the_source_has_twice_is_refused(self, bucket: Bucket) -> None:
        bucket.failed([3, 4])
        bucket.source[4] = ["one", "another"]
        bucket.source[5] = ["it was", "answered"]

        with pytest.raises(NotMatched, match=r"1 key of .* is not unique in the source as it is now: \(id: 4\)\. Delete"):
            bucket.corrected()

    def test_a_key_that_the_night_has_twice_is_refused(self, bucket: Bucket) -> None:
        """Also if only one of the two is dead: the source no longer says which of them it was."""
        run = open_run(bucket.store, STRICT, DAY, opened_by="night", project="p")
        files = write_input(bucket.store, run, TEXTS, per_file=8, per_group=3)
        path = f"{run.prefix}/{files[1].path}"
        table = pq.read_table(io.BytesIO(bytes(obstore.get(bucket.store, path).bytes())))
        keys = table.column("id").to_pylist()
        keys[0] = 3
        body = io.BytesIO()
        pq.write_table(
            table.set_column(table.column_names.index("id"), "id", pa.array(keys, pa.int64())), body, row_group_size=3
        )
        obstore.put(bucket.store, path, body.getvalue())
        meta = obstore.head(bucket.store, path)
        files = (files[0], replace(files[1], size=meta["size"], etag=str(meta["e_tag"])), *files[2:])
        plan = save_plan(bucket.store, run, bound(bucket.store, run, Plan(run.run_id, 20, 4, 1, files, source=SOURCE)))
        bucket.compute(run, plan, [3, 4])

        with pytest.raises(NotMatched, match=r"1 key of .* is not unique: the night has several rows with \(id: 3\)"):
            bucket.corrected()

    def test_more_than_can_be_matched_are_refused_before_a_run_is_opened(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        night = bucket.failed([3, 4])
        monkeypatch.setattr(corrected_rows, "MOST", 1)

        with pytest.raises(NotRedone, match="has left 2 rows without an answer, and at most 1 can be matched"):
            bucket.corrected()
        assert open_run(bucket.store, STRICT, DAY, opened_by="x", project="p") == night

    def test_rows_of_another_key_are_not_sealed(self, bucket: Bucket) -> None:
        """The ordinals are right, and the rows are not."""
        bucket.failed([3, 4])
        run = bucket.corrected()
        plan = bucket.plan(run)
        (file,) = plan.files
        path = f"{run.prefix}/{file.path}"
        table = pq.read_table(io.BytesIO(bytes(obstore.get(bucket.store, path).bytes())))
        other = table.set_column(table.column_names.index("id"), "id", pa.array([4, 5], pa.int64()))
        body = io.BytesIO()
        pq.write_table(other, body)
        obstore.put(bucket.store, path, body.getvalue())
        meta = obstore.head(bucket.store, path)
        other_plan = replace(plan, files=(replace(file, size=meta["size"], etag=str(meta["e_tag"])),))
        bucket.compute(run, other_plan, [])

        with pytest.raises(NotRedone, match="with another key: the rows are not those"):
            seal(bucket.store, run, STRICT, other_plan, redo=bucket.what(run))


class TestACorrectedJob:
    def test_it_is_a_run_with_its_own_digest(self, bucket: Bucket) -> None:
        night = bucket.failed([3, 4])

        run = bucket.corrected(spec=EDITED)

        assert run == RunRef("job", DAY, run_digest("job", DAY, EDITED.semantic(), "p"))
        spec, record = load_run(bucket.store, run)
        assert spec.semantic() == EDITED.semantic()
        before = load_run(bucket.store, night)[1]
        assert record.stored.get("pinned") == before.stored.get("pinned"), "one day, one model"
        manifest = bucket.finish(run, spec=EDITED)
        assert len(bucket.published_rows(run, manifest)) == 20
        assert open_run(bucket.store, EDITED, DAY, opened_by="the next night", project="p") == run

    def test_a_redo_of_the_same_rows_by_another_job_is_refused_with_what_to_do(self, bucket: Bucket) -> None:
        bucket.failed([3, 4])

        with pytest.raises(NotRedone, match=r"request\.input changed.*Or trigger with redo: corrected"):
            bucket.again(spec=EDITED)

    def test_asked_for_again_after_another_change_it_is_another_redo_of_the_same_run(self, bucket: Bucket) -> None:
        night = bucket.failed([3, 4])
        first = bucket.corrected("one", EDITED)
        better = a_spec(dead_letters__tolerate="5%", request__input="{{ text }}?")

        second = bucket.corrected("one", better)

        assert first != second
        assert bucket.what(second).run_id == night.run_id

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"model": {"name": "m", "uri": "hf://org/m", "revision": "r2"}}, "model changed"),
            ({"source__key": ["id", "text"]}, r"source\.key changed"),
        ],
    )
    def test_what_makes_other_rows_or_another_kind_of_answer_is_refused(
        self, bucket: Bucket, change: Mapping[str, Any], said: str
    ) -> None:
        bucket.failed([3, 4])

        with pytest.raises(NotRedone, match=rf"^{said} since run .*The query, the prompt"):
            bucket.corrected(spec=a_spec(dead_letters__tolerate="5%", **change))

    def test_another_type_of_the_key_is_refused(self, bucket: Bucket) -> None:
        bucket.failed([3, 4])
        bucket.columns = ExportedSource({"id": "STRING", "text": "STRING"}, ("p.d.t",))

        with pytest.raises(NotRedone, match=r"another type .*: id was INT64 and is STRING\. Cast"):
            bucket.corrected()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": ["a"], "b": ["bc"]}, {"a": ["ab"], "b": ["c"]}),
        ({"a": [None], "b": ["-"]}, {"a": ["-"], "b": [None]}),
        ({"a": ["1:x,1"], "b": [""]}, {"a": ["1"], "b": [":x,1"]}),
        ({"a": [b"\xff"], "b": [1.0]}, {"a": [b"\xfe"], "b": [1.0]}),
        ({"a": [""], "b": [True]}, {"a": [None], "b": [True]}),
    ],
)
def test_different_keys_have_different_bytes(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> None:
    assert key_bytes(pa.table(one), ["a", "b"]) != key_bytes(pa.table(other), ["a", "b"])
    assert key_bytes(pa.table(one), ["a", "b"]) == key_bytes(pa.table(one), ["a", "b"])
