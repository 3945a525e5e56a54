"""The task plan's decision: written once, found again, or refused; with a warehouse that only counts."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from obstore.store import MemoryStore

from nightshift.hooks.deployment import Deployment
from nightshift.operators.plan import PlanOperator
from nightshift.planner.decisions import load_decision
from nightshift.planner.record import Record, workload_of
from nightshift.planner.speed import Basis
from nightshift.planner.speeds import path_of
from nightshift.run.names import RunRef, canonical_json
from nightshift.run.plan import ExportedSource, save_plan
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from tests.builders import a_plan, a_spec
from tests.canned_cluster import LOCAL_QUEUE, CannedApi, Cluster
from tests.unit import model_configs as configs

pytestmark = pytest.mark.unit

CHAT: dict[str, Any] = {
    "task": "chat",
    "request": {"user": "{{ text }}", "max_tokens": 256},
    "engine": {"max_num_seqs": 256, "max_model_len": 4096},
    "compute": {"profile": "gpu-l4-spot"},
    "deadline": "3h",
}


class Planner:
    """Executes the task plan on one store; `log` is what it said, `rows` what the query has."""

    def __init__(self, store: MemoryStore, rows: int) -> None:
        self.store, self.rows = store, rows
        self.log = ""
        self.sampled = 0

    def told(self, spec: JobSpec, **settings: Any) -> dict[str, Any]:
        with DAG("job", schedule=None):
            task = PlanOperator(task_id="plan", spec=spec.model_dump(mode="json"))
        lines: list[str] = []
        said = SimpleNamespace(**dict.fromkeys(("info", "warning"), lambda text, *args: lines.append(text % args)))
        warehouse = SimpleNamespace(
            check_query=lambda *_: ExportedSource({}, ()),
            check_may_replace=lambda *_: None,
            asked_last=lambda *_: None,
            count_rows=lambda *_: self.rows,
            keys=None,
            sample_rows=self._sample,
            bytes_asked=None,
        )
        task.__dict__.update(
            settings=Settings("runs", "acme", **settings),
            store=self.store,
            storage_credentials=None,
            warehouse=warehouse,
            _cached_logger=said,
        )
        began = SimpleNamespace(run_id="manual", run_type="manual", start_date=datetime.now(UTC))
        context: Any = {"params": {"partition": "2026-11-20"}, "dag_run": began}
        try:
            return task.execute(context)
        finally:
            self.log = "\n".join(lines)

    def _sample(self, spec: JobSpec, partition: str, columns: tuple[str, ...], most: int) -> list[dict[str, Any]]:
        self.sampled += 1
        assert (partition, columns) == ("2026-11-20", ("id", "text"))
        return [{"text": "x" * 1992}] * min(most, self.rows)


@pytest.fixture
def planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planner:
    """A million rows, and a cache with the model of `a_spec`."""
    folder = tmp_path / "models--org--m"
    for path, body in (("snapshots/c/config.json", json.dumps(configs.LLAMA3_8B)), ("refs/r1", "c")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(body)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return Planner(MemoryStore(), 1_000_000)


def test_the_decision_is_written_and_said(planner: Planner) -> None:
    told = planner.told(a_spec(**CHAT))

    found = load_decision(planner.store, told["decision"])
    assert found is not None
    assert told["decision"].startswith(f"{told['run_prefix']}/decisions/")
    assert (found.rows, found.workers, found.speed.basis) == (1_000_000, 93, Basis.ESTIMATED)
    assert found.row_tokens == 500
    assert "500 input tokens per row: a sample of 200 rows, 4 characters per token" in found.speed.words
    assert told["planned"] == list(found.reasons)
    assert "* gpu-l4-spot" in planner.log, "the table"
    assert "Decided: 93 workers x 118 min" in planner.log


def test_a_reservation_without_a_name_ends_the_night_before_anything_is_asked(planner: Planner) -> None:
    """Of a fallback too: a night that learns of it at four o'clock has lost its time."""
    spec = a_spec(**{**CHAT, "compute": {"profile": "gpu-l4-spot", "fallback": ["gpu-l4-reservation"]}})

    with pytest.raises(
        AirflowFailException, match="needs a reservation of g2-standard-8, but NIGHTSHIFT_RESERVATIONS is not set"
    ):
        planner.told(spec)
    assert (planner.sampled, list(planner.store.list())) == (0, [])
    assert planner.told(spec, reservations="g2-standard-8=nights")["decision"]


def test_a_retry_finds_the_same_decision_and_a_changed_job_another(planner: Planner) -> None:
    first, again = (planner.told(a_spec(**CHAT))["decision"] for _ in range(2))
    longer = planner.told(a_spec(**{**CHAT, "deadline": "6h"}))["decision"]

    assert first == again != longer


def test_a_planned_run_is_not_decided_again(planner: Planner) -> None:
    told = planner.told(a_spec(**CHAT))
    save_plan(planner.store, RunRef.from_prefix(told["run_prefix"]), a_plan(10))
    planner.sampled = 0

    assert planner.told(a_spec(**CHAT))["decision"] is None
    assert planner.sampled == 0


def test_what_cannot_fit_is_refused_with_ways_out(planner: Planner) -> None:
    """Nothing is decided then, and the log has the table."""
    with pytest.raises(AirflowFailException, match=r"The run does not fit: 8 workers would need .* What would fit, .* 1\. "):
        planner.told(a_spec(**CHAT), workers_max=8)

    assert not [meta for page in obstore.list(planner.store) for meta in page if "/decisions/" in meta["path"]]
    assert re.search(r"\n  gpu-l4-spot .*no, too late\n", planner.log)


def test_the_queue_is_asked_for_its_quota(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canned one has no GPU."""
    monkeypatch.setattr(Deployment, "cluster", lambda _: CannedApi(Cluster()))

    with pytest.raises(AirflowFailException, match="the queue's quota is 0"):
        planner.told(a_spec(**CHAT, queue="nightly"))

    assert "Quota: ClusterQueue 'nightshift' allows gpu-l4-spot 0 accelerators" in planner.log


def test_a_queue_that_must_not_be_read_is_said_and_done_without(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deployment, "cluster", lambda _: CannedApi(Cluster(hidden={LOCAL_QUEUE})))

    found = load_decision(planner.store, planner.told(a_spec(**CHAT, queue="nightly"))["decision"])

    assert found is not None
    assert found.workers == 93
    assert "kubectl apply -f k8s/components/queues/airflow.yaml" in planner.log


def test_a_day_without_rows_is_decided_without_looking(planner: Planner) -> None:
    planner.rows = 0
    found = load_decision(planner.store, planner.told(a_spec(**CHAT))["decision"])

    assert found is not None
    assert (found.rows, found.workers, planner.sampled) == (0, 1, 0)


def a_record(spec: JobSpec, profile: str, **changes: Any) -> Record:
    """5 rows a second for 10,000 s, on workers that started in 200 s."""
    measured: dict[str, Any] = {
        "workload": workload_of(spec, profile),
        "run": "job/2026-11-19/0123456789abcdef",
        "sealed_at": "2026-11-20T03:00:00+00:00",
        "rows": 50_000,
        "workers": 2,
        "work_s": 10_000.0,
        "alive_s": 20_000.0,
        "input_tokens": 25_000_000,
        "output_tokens": 5_000_000,
        "preemptions": 1,
        "start_up_s": {"node": 100.0, "weights": 100.0},
        "profile": profile,
    }
    return Record(**{**measured, **changes})


def kept(planner: Planner, record: Record) -> None:
    obstore.put(planner.store, path_of(record), canonical_json(record.to_json()))


def test_the_next_night_is_planned_from_the_record_of_the_last(planner: Planner) -> None:
    spec = a_spec(**CHAT)
    kept(planner, a_record(spec, "gpu-l4-spot"))
    told = planner.told(spec)

    speed = load_decision(planner.store, told["decision"]).speed  # type: ignore[union-attr]
    assert (speed.basis, speed.rows_per_second, speed.start_up_s) == (Basis.MEASURED, 5.0, 200.0)
    assert speed.preemptions_per_hour == pytest.approx(0.18)
    assert ": measured in run job/2026-11-19/0123456789abcdef" in planner.log, "below the table"


def test_a_record_of_machines_that_are_bought_otherwise_says_only_how_fast_they_are(planner: Planner) -> None:
    spec = a_spec(**CHAT)
    kept(planner, a_record(spec, "gpu-l4"))

    speed = load_decision(planner.store, planner.told(spec)["decision"]).speed  # type: ignore[union-attr]
    assert (speed.basis, speed.rows_per_second) == (Basis.MEASURED, 5.0)
    assert (speed.start_up_words, speed.preemptions_per_hour) == ("the most that the profile allows", 0.0)


@pytest.mark.parametrize("change", [{"request": {"user": "{{ text }}!", "max_tokens": 256}}, {"model__revision": "r2"}])
def test_a_record_of_other_work_is_not_a_speed(planner: Planner, change: dict[str, Any]) -> None:
    kept(planner, a_record(a_spec(**{**CHAT, **change}), "gpu-l4-spot"))

    found = load_decision(planner.store, planner.told(a_spec(**CHAT))["decision"])
    assert found is not None
    assert found.speed.basis is Basis.ESTIMATED


def test_an_unknown_speed_is_refused(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker for a million rows would have been a guess. Nothing is decided."""
    monkeypatch.setenv("HF_HUB_CACHE", "/nonexistent")

    with pytest.raises(AirflowFailException, match=r"Nothing can be planned for 1,000,000 rows: .* unknown: config\.json of"):
        planner.told(a_spec(**CHAT))

    assert not [meta for page in obstore.list(planner.store) for meta in page if "/decisions/" in meta["path"]]


def test_but_for_a_day_without_rows(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/nonexistent")
    planner.rows = 0

    assert planner.told(a_spec(**CHAT))["decision"]


def test_of_workers_that_the_job_states_it_is_a_warning(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/nonexistent")
    found = load_decision(
        planner.store, planner.told(a_spec(**{**CHAT, "compute": {**CHAT["compute"], "workers": 7}}))["decision"]
    )

    assert found is not None
    assert (found.workers, found.speed.basis) == (7, Basis.UNKNOWN)
    assert "their speed is unknown: config.json of" in planner.log


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"rows": 1' + b"0" * 400 + b"}"])
def test_an_odd_object_among_the_records_fails_no_plan(planner: Planner, body: bytes) -> None:
    spec = a_spec(**CHAT)
    record = a_record(spec, "gpu-l4-spot")
    kept(planner, record)
    obstore.put(planner.store, f"{path_of(record).rpartition('/')[0]}/0000000000-odd.json", body)

    speed = load_decision(planner.store, planner.told(spec)["decision"]).speed  # type: ignore[union-attr]
    assert speed.basis is Basis.MEASURED


def test_a_plan_goes_on_without_records(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OverflowError("int too large")

    monkeypatch.setattr("nightshift.planner.speeds.nearest", fail)

    assert planner.told(a_spec(**CHAT))["decision"]
    assert "Planned without recorded speeds: OverflowError: int too large" in planner.log
