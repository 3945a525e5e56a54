"""Records of speeds in a bucket: which ones a sealed run leaves, and which are found for a workload."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore, ObjectStore

from nightshift.planner import speeds
from nightshift.planner.decisions import save_decision
from nightshift.planner.plan import decide
from nightshift.planner.record import Record, hardware_of, workload_of
from nightshift.planner.speed import Known, tokens_of
from nightshift.planner.speeds import keep, nearest, path_of, records_for, records_if_any, records_of
from nightshift.run.manifest import RunManifest
from nightshift.run.names import canonical_json
from nightshift.spec.values import job_name
from nightshift.store import StoreUnavailable, get_bytes, open_store
from tests.builders import RUN, a_manifest, a_plan, a_spec

pytestmark = pytest.mark.unit

SPEC = a_spec(compute__profile="gpu-l4-spot")
WORKLOAD = workload_of(SPEC, "gpu-l4-spot")
RECORD = Record(WORKLOAD, RUN.prefix, "2026-11-21T03:00:00+00:00", 600, 2, 30.0, 7200.0, 9000, 0, 3, {}, "gpu-l4-spot")
PROFILE: dict[str, Any] = {
    "profile": "gpu-l4-spot",
    "workers": 2,
    "attempts": 5,
    "ended": {"done": 1, "killed": 2, "drained": 1, "gave_up": 1},
    "preempted": 3,
    "rows": 610,
    "rows_answered": 600,
    "rows_unused": 0,
    "rows_lost": 0,
    "input_tokens": 9000,
    "output_tokens": 70,
    "alive_s": 7200.0,
    "work_s": 30.0,
    "engine_wait_s": 0.0,
    "cpus": 6.0,
    "start_up_s": {"weights": 31.0},
}


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store("memory:///" if request.param == "memory" else f"file://{tmp_path}/bucket")


ODD = [
    b"[" * 100_000,
    b'{"version": ' + b"1" * 5000 + b"}",
    b"\xff\xfe",
    b'"text"',
    b"NaN",
    *(
        json.dumps({**RECORD.to_json(), **change}).encode()
        for change in (
            {"rows": 10**400},
            {"preemptions": 10**400},
            {"input_tokens": 10**400},
            {"start_up_s": {"weights": 1e308}},
            {"work_s": 1e-320},
            {"row_tokens": -1},
            {"sealed_at": "tomorrow"},
            {"sealed_at": "9999-12-31T23:59:59-23:59"},
            {"workload": {**RECORD.to_json()["workload"], "performance": {"args": {"x": {"y": {}}}}}},
            {"workload": {**RECORD.to_json()["workload"], "model_uri": None}},
            {"run": "x" * 70_000},
        )
    ),
]
"""Objects that are no records."""


def manifest_of(*profiles: dict[str, Any]) -> RunManifest:
    return a_manifest(rows=610, dead_letters=10, measured={"profiles": [{**PROFILE, **each} for each in profiles]})


def save(store: ObjectStore, *records: Record) -> None:
    for record in records:
        obstore.put(store, path_of(record), canonical_json(record.to_json()), mode="create")


class TestWorkload:
    def test_hardware_is_named_as_in_the_table_of_machines(self) -> None:
        names = ("gpu-l4-spot", "gpu-a100-80gb", "tpu-v6e-flex", "cpu")

        assert [hardware_of(name) for name in names] == ["l4", "a100-80gb", "v6e", "cpu"]

    def test_accelerators_are_those_of_all_hosts(self) -> None:
        spec = a_spec(
            compute={"profile": "gpu-h100-spot", "tensor_parallel": 8, "pipeline_parallel": 2, "hosts": 2},
        )

        assert workload_of(spec, "gpu-h100-spot").accelerators == 16

    def test_cpus_count_only_without_an_accelerator(self) -> None:
        assert workload_of(a_spec(), "cpu", cpus=6.0).cpus == 6.0
        assert workload_of(SPEC, "gpu-l4-spot", cpus=6.0).cpus == 0.0

    @pytest.mark.parametrize(
        "change", [{"request__input": "{{ text }}!"}, {"engine__dtype": "half"}, {"request__dimensions": 64}]
    )
    def test_what_changes_answers_is_another_workload(self, change: dict[str, Any]) -> None:
        assert workload_of(a_spec(compute__profile="gpu-l4-spot", **change), "gpu-l4-spot").answers != WORKLOAD.answers

    @pytest.mark.parametrize("change", [{"deadline": "5h"}, {"destination__table": "d.other"}, {"chunk_rows": 7}])
    def test_what_changes_neither_answers_nor_speed_is_the_same_workload(self, change: dict[str, Any]) -> None:
        assert workload_of(a_spec(compute__profile="gpu-l4-spot", **change), "gpu-l4-spot") == WORKLOAD

    def test_each_setting_of_the_engine_is_either_in_the_digest_or_a_matter_of_performance(self) -> None:
        for change in ({"engine__max_num_seqs": 9}, {"engine__args": {"enforce-eager": True}}, {"engine__max_model_len": 99}):
            assert workload_of(a_spec(compute__profile="gpu-l4-spot", **change), "gpu-l4-spot") != WORKLOAD

    def test_a_setting_that_changes_answers_is_no_matter_of_performance_though_it_has_its_default(self) -> None:
        """Else a release with a new field would find no record of the same work."""
        assert not {"dtype", "max_model_len", "overlong", "dimensions"} & WORKLOAD.performance.keys()

    def test_what_changes_the_speed_alone_is_a_matter_of_performance(self) -> None:
        other = workload_of(a_spec(compute__profile="gpu-l4-spot", request__rows_per_request=2), "gpu-l4-spot")

        assert other.answers == WORKLOAD.answers
        assert (other.performance["rows_per_request"], WORKLOAD.performance["rows_per_request"]) == (2, 4)

    def test_the_number_of_engines_is_one_unless_it_is_one_as_in_earlier_records(self) -> None:
        two, one = (workload_of(a_spec(compute={"profile": "gpu-l4-spot", "engines": n}), "gpu-l4-spot") for n in (2, 1))

        assert (two.answers, one) == (WORKLOAD.answers, WORKLOAD)
        assert two.performance == {**WORKLOAD.performance, "engines": 2}

    def test_a_flag_that_changes_the_speed_alone_too(self) -> None:
        args = {"max-num-batched-tokens": 4096, "kv-cache-dtype": "fp8"}
        other = workload_of(a_spec(compute__profile="gpu-l4-spot", engine__args=args), "gpu-l4-spot")

        assert other.performance["args"] == {"max-num-batched-tokens": 4096}
        assert other.answers != WORKLOAD.answers


class TestRecords:
    def test_a_record_says_what_was_measured(self) -> None:
        (record,) = records_of(RUN, SPEC, manifest_of(PROFILE))

        assert record == replace(RECORD, output_tokens=70, start_up_s={"weights": 31.0})

    def test_a_machine_is_held_before_its_driver_is_born(self) -> None:
        (record,) = records_of(RUN, SPEC, manifest_of({"before_s": 800.0}))

        assert record.alive_s == 8000.0

    def test_each_rung_has_one(self) -> None:
        records = records_of(RUN, SPEC, manifest_of(PROFILE, {"profile": "gpu-l4"}))

        assert [record.profile for record in records] == ["gpu-l4-spot", "gpu-l4"]
        assert len({path_of(record) for record in records}) == 2

    @pytest.mark.parametrize("change", [{"profile": ""}, {"profile": "gpu-of-tomorrow"}, {"rows_answered": 0}, {"work_s": 0.0}])
    def test_what_says_nothing_of_a_speed_is_left_out(self, change: dict[str, Any]) -> None:
        assert records_of(RUN, SPEC, manifest_of(change)) == []

    @pytest.mark.parametrize(("dead", "records"), [(0, 1), (30, 1), (31, 0), (580, 0), (610, 0)])
    def test_a_run_with_many_dead_letters_says_nothing_of_a_speed(self, dead: int, records: int) -> None:
        """8,000 rows of which 95 % were NULL left a record of 1,371 rows a second of an engine that did 69."""
        assert len(records_of(RUN, SPEC, replace(manifest_of(PROFILE), dead_letters=dead))) == records

    def test_a_release_that_did_not_tell_rows_and_disruptions_apart_has_rows_alone(self) -> None:
        profile = {name: value for name, value in PROFILE.items() if name not in ("rows_answered", "preempted")}

        (record,) = records_of(RUN, SPEC, a_manifest(rows=610, measured={"profiles": [profile]}))

        assert (record.rows, record.preemptions) == (610, 0)

    def test_a_manifest_without_measurements_has_none(self) -> None:
        assert records_of(RUN, SPEC, a_manifest()) == []

    def test_a_start_up_without_its_largest_part_is_not_known(self) -> None:
        (record,) = records_of(RUN, SPEC, manifest_of({"start_up_s": {"node": 20.0, "warm_up": 1.0}}))

        assert record.start_up_s == {}

    def test_fleet_deadline_them_again_changes_nothing(self, store: ObjectStore) -> None:
        for _ in range(2):
            keep(store, RUN, SPEC, manifest_of(PROFILE), a_plan(4))

        assert len(obstore.list(store, speeds.FOLDER).collect()) == 1

    def test_a_store_that_refuses_does_not_fail_the_seal(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise obstore.exceptions.PermissionDeniedError("403")

        monkeypatch.setattr(obstore, "put", refuse)

        keep(MemoryStore(), RUN, SPEC, manifest_of(PROFILE), a_plan(4))

        assert "is not recorded: PermissionDeniedError" in caplog.text

    def test_the_lengths_of_rows_are_those_that_the_plan_was_decided_with(self, store: ObjectStore) -> None:
        for tokens, day in ((None, 1), (123.5, 2)):
            stated = a_spec(compute__profile="gpu-l4-spot", compute__workers=1)
            path = save_decision(store, RUN, decide(stated, 4, Known(tokens_of(SPEC, tokens, "a sample"))))
            manifest = replace(manifest_of(PROFILE), sealed_at=f"2026-11-{day:02}T03:00:00+00:00")
            keep(store, RUN, SPEC, manifest, replace(a_plan(4), decision=path))

        assert [each.row_tokens for each in nearest(store, WORKLOAD)] == [123.5, None]

    @pytest.mark.parametrize("body", [None, b"{", b'{"version": 99}'])
    def test_a_decision_that_cannot_be_read_costs_no_record(self, body: bytes | None) -> None:
        store = MemoryStore()
        if body is not None:
            obstore.put(store, "decision", body)

        keep(store, RUN, SPEC, manifest_of(PROFILE), replace(a_plan(4), decision="decision"))

        assert nearest(store, WORKLOAD)[0].row_tokens is None

    def test_a_record_from_before_lengths_were_kept_is_read(self) -> None:
        body = RECORD.to_json()
        del body["row_tokens"]

        assert Record.from_json(body) == RECORD

    def test_no_job_can_have_their_folder(self) -> None:
        with pytest.raises(ValueError, match=speeds.FOLDER):
            job_name(speeds.FOLDER)


class TestNearest:
    def test_an_empty_bucket_has_none(self, store: ObjectStore) -> None:
        assert nearest(store, WORKLOAD) == []

    def test_the_same_workload_first_and_the_newest_of_it(self, store: ObjectStore) -> None:
        days = [replace(RECORD, sealed_at=f"2026-11-{day:02}T03:00:00+00:00", run=f"job/d{day}/x") for day in range(1, 21)]
        save(store, *days, replace(RECORD, workload=replace(WORKLOAD, accelerators=2), sealed_at="2026-11-25T03:00:00+00:00"))

        found = nearest(store, WORKLOAD, most=3)

        assert [each.run for each in found] == ["job/d20/x", "job/d19/x", "job/d18/x"]

    def test_other_settings_come_later_however_new_and_other_work_is_not_near(self, store: ObjectStore) -> None:
        answers = replace(RECORD, workload=replace(WORKLOAD, answers="f" * 16), sealed_at="2026-11-25T03:00:00+00:00")
        size = replace(RECORD, workload=replace(WORKLOAD, accelerators=4), sealed_at="2026-11-24T03:00:00+00:00")
        performance = {**WORKLOAD.performance, "max_num_seqs": 99}
        tuned = replace(RECORD, workload=replace(WORKLOAD, performance=performance), sealed_at="2026-11-23T03:00:00+00:00")
        save(store, answers, size, tuned, RECORD)

        assert nearest(store, WORKLOAD) == [RECORD, tuned]

    @pytest.mark.parametrize("change", [{"model_uri": "hf://org/other"}, {"model_revision": "r2"}, {"hardware": "h100"}])
    def test_other_models_and_other_hardware_are_not_near(self, store: ObjectStore, change: dict[str, Any]) -> None:
        save(store, replace(RECORD, workload=replace(WORKLOAD, **change)))

        assert nearest(store, WORKLOAD) == []

    def test_the_same_way_to_buy_a_machine_comes_before_a_newer_one(self, store: ObjectStore) -> None:
        save(store, RECORD, replace(RECORD, profile="gpu-l4", sealed_at="2026-11-25T03:00:00+00:00"))

        assert [each.profile for each in nearest(store, WORKLOAD)] == ["gpu-l4", "gpu-l4-spot"]
        assert nearest(store, WORKLOAD, profile="gpu-l4-spot")[0] == RECORD

    def test_who_does_not_know_the_cpus_finds_any(self, store: ObjectStore) -> None:
        record = replace(RECORD, workload=workload_of(a_spec(), "cpu", cpus=6.0), profile="cpu")
        save(store, record)

        found = [nearest(store, workload_of(a_spec(), "cpu", cpus=cpus)) for cpus in (0.0, 6.0, 2.0)]

        assert found == [[record], [record], []]

    def test_each_profile_of_a_job_has_its_own_or_that_of_the_same_hardware(self, store: ObjectStore) -> None:
        spec = a_spec(compute={"profile": "gpu-l4-spot", "fallback": ["gpu-l4", "gpu-h100"]})
        own = replace(RECORD, profile="gpu-l4", sealed_at="2026-11-01T03:00:00+00:00")
        far = replace(RECORD, workload=replace(workload_of(spec, "gpu-h100"), answers="f" * 16), profile="gpu-h100")
        save(store, RECORD, own, far)

        assert records_for(store, spec) == {"gpu-l4-spot": RECORD, "gpu-l4": own}

    def test_a_run_of_a_few_rows_does_not_hide_a_large_one(self, store: ObjectStore) -> None:
        trial = replace(RECORD, rows=3, workers=1, sealed_at="2026-11-24T03:00:00+00:00")
        save(store, RECORD, trial)

        assert records_for(store, SPEC)["gpu-l4-spot"] == RECORD
        assert nearest(store, WORKLOAD)[0] == trial

    def test_what_is_no_record_is_passed_over(self, store: ObjectStore) -> None:
        save(store, RECORD)
        folder = path_of(RECORD).rpartition("/")[0]
        obstore.put(store, f"{folder}/0000000000-torn.json", b"{")
        obstore.put(store, f"{folder}/0000000001-later.json", b'{"version": 99}')
        obstore.put(store, f"{folder.rpartition('/')[0]}/somebody/else.txt", b"hello")

        assert nearest(store, WORKLOAD) == [RECORD]

    @pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
    def test_an_odd_one_costs_itself_alone(self, store: ObjectStore, body: bytes) -> None:
        """Anybody who may write there may leave it, and it is newer than all others."""
        save(store, RECORD)
        folder = path_of(RECORD).rpartition("/")[0]
        for number in range(speeds.LOOKED_AT - 1):
            obstore.put(store, f"{folder}/{number:010d}-odd.json", body)

        assert records_for(store, SPEC)["gpu-l4-spot"] == RECORD
        decide(SPEC, 10**6, Known(tokens_of(SPEC), records=records_for(store, SPEC)))

    def test_one_under_the_name_of_another_is_none(self, store: ObjectStore) -> None:
        """As of another model, whose speed it is, or newer than it is."""
        save(store, RECORD)
        folder = path_of(RECORD).rpartition("/")[0]
        other = replace(RECORD, rows=10**6, workload=replace(WORKLOAD, model_uri="hf://org/other"))
        for number, record in enumerate((other, replace(RECORD, rows=10**6))):
            obstore.put(store, f"{folder}/{number:010d}-x.json", canonical_json(record.to_json()))

        assert nearest(store, WORKLOAD) == [RECORD]

    def test_one_that_a_fast_clock_has_dated_is_none(self, store: ObjectStore) -> None:
        """Else it would be the newest until that day."""
        save(store, RECORD, replace(RECORD, sealed_at=(datetime.now(UTC) + timedelta(days=400)).isoformat(timespec="seconds")))

        assert nearest(store, WORKLOAD) == [RECORD]

    def test_a_huge_one_is_not_read(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        store = MemoryStore()
        save(store, RECORD)
        name = f"{path_of(RECORD).rpartition('/')[0]}/0000000000-huge.json"
        obstore.put(store, name, b" " * (speeds.BYTES_MOST + 1))
        read = []

        def counted(store: ObjectStore, path: str) -> bytes | None:
            read.append(path)
            return get_bytes(store, path)

        monkeypatch.setattr(speeds, "get_bytes", counted)

        assert nearest(store, WORKLOAD) == [RECORD]
        assert read == [path_of(RECORD)]
        assert "is not a record: NotARecord: it has 65,537 bytes" in caplog.text

    @pytest.mark.parametrize("error", [StoreUnavailable("503"), RecursionError(), MemoryError(), KeyError("x")], ids=repr)
    def test_whatever_they_raise_a_plan_goes_on(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(speeds, "nearest", fail)
        said: list[str] = []

        assert records_if_any(MemoryStore(), SPEC, said.append) == {}
        assert said == [f"Planned without recorded speeds: {type(error).__name__}: {error}"]

    def test_reads_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = MemoryStore()
        tuned = [{**WORKLOAD.performance, "max_num_seqs": 2 + n} for n in range(60)]
        others = [replace(RECORD, workload=replace(WORKLOAD, performance=each)) for each in tuned]
        save(store, *others)
        reads = 0

        def counted(store: ObjectStore, path: str) -> bytes | None:
            nonlocal reads
            reads += 1
            return get_bytes(store, path)

        monkeypatch.setattr(speeds, "get_bytes", counted)

        assert len(nearest(store, WORKLOAD, most=5)) == 5
        assert reads <= speeds.FOLDERS_MOST * 5

    def test_a_store_that_is_away_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def away(*_: Any, **__: Any) -> None:
            raise obstore.exceptions.GenericError("503")

        monkeypatch.setattr(obstore, "list_with_delimiter", away)

        with pytest.raises(StoreUnavailable, match="503"):
            nearest(MemoryStore(), WORKLOAD)
