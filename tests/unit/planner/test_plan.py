"""The planner keeps its bounds or refuses, whatever it is asked."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nightshift.planner.feasibility import answer, cost
from nightshift.planner.model import model_of
from nightshift.planner.plan import Decision, NotADecision, Refused, SpeedUnknown, decide, fixed, question_of, table, weigh
from nightshift.planner.record import Record, Workload, workload_of
from nightshift.planner.speed import Basis, Known, speed_of, tokens_of
from nightshift.planner.suggestions import WAYS
from nightshift.profiles import PROFILES, WORK_SECONDS_MIN, Span, fit
from nightshift.profiles.limits import Limits
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.unit import model_configs as configs

pytestmark = pytest.mark.unit

SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
UNKNOWN = Known(tokens_of(a_spec()))
CHAT: dict[str, Any] = {
    "task": "chat",
    "request": {"user": "{{ text }}", "max_tokens": 256},
    "engine__max_num_seqs": 256,
    "engine__max_model_len": 4096,
    "compute": {"profile": "gpu-l4-spot"},
    "deadline": "3h",
}


def chat_with(engines: int) -> JobSpec:
    return a_spec(**{**CHAT, "compute": {"profile": "gpu-l4-spot", "engines": engines}})


def a_record(
    rate: float, *, preemptions: int = 0, start_up_s: float = 200.0, run: str = "job/2026-11-19/0123456789abcdef"
) -> Record:
    """Of 10,000 s of work, and as many of life."""
    workload = Workload("hf://org/m", "r1", "chat", "0", {}, "l4", 1)
    stages = {"node": start_up_s / 2, "weights": start_up_s / 2}
    return Record(
        workload,
        run,
        "2026-11-20T00:00:00+00:00",
        round(rate * 10_000),
        2,
        10_000.0,
        10_000.0,
        10**6,
        10**5,
        preemptions,
        stages,
    )


@st.composite
def questions(draw: st.DrawFn) -> tuple[JobSpec, int, Known, Limits]:
    """A job, its rows, what is known of them, and limits."""
    profile = draw(st.sampled_from(["cpu", "gpu-l4-spot", "gpu-h100", "tpu-v6e-flex"]))
    compute: dict[str, Any] = {"profile": profile}
    if draw(st.booleans()):
        compute["rows_per_worker_per_second"] = draw(st.floats(1e-3, 1e4))
    if draw(st.integers(0, 3)) == 0:
        compute["workers"] = draw(st.integers(1, 300))
    if not profile.startswith("tpu-"):
        compute["engines"] = draw(st.sampled_from([None, None, 2, 8]))
    changes: dict[str, Any] = {
        "task": "chat",
        "request": {"user": "{{ text }}", "max_tokens": draw(st.integers(1, 4000))},
        "engine__max_num_seqs": draw(st.integers(1, 1024)),
        "engine__max_model_len": draw(st.integers(512, 8192)),
        "compute": compute,
        "deadline": f"{draw(st.integers(1, 3000))}m",
    }
    if draw(st.integers(0, 3)) == 0:
        changes["chunk_rows"] = draw(st.integers(1, 100_000))
    spec = a_spec(**changes)
    config = draw(st.sampled_from([None, configs.MINILM, configs.QWEN25_05B, configs.LLAMA3_8B, configs.MIXTRAL]))
    records = {}
    if draw(st.booleans()):
        rate, starts = draw(st.floats(1e-2, 1e3)), draw(st.floats(0, 3000))
        record = a_record(rate, preemptions=draw(st.integers(0, 20)), start_up_s=starts)
        records[profile] = replace(record, row_tokens=draw(st.none() | st.floats(0, 1e5)))
    # Else there is nothing to plan from.
    assume(config or records or spec.compute.workers or spec.compute.rows_per_worker_per_second)
    tokens = tokens_of(spec, draw(st.floats(1, 1e5)), "drawn")
    limits = Limits(draw(st.integers(0, 200)), draw(st.none() | st.integers(0, 500)))
    return spec, draw(st.integers(1, 10**9)), Known(tokens, config and model_of(config), "none", records), limits


def check_bounds(decision: Decision, spec: JobSpec, rows: int, limits: Limits) -> None:
    shape = spec.compute.worker()
    units = shape.accelerators * shape.hosts or 1
    assert decision.workers >= 1
    assert decision.chunk_rows >= 1
    if limits.quota is not None:
        assert decision.workers * units <= limits.quota
    if spec.compute.workers is None:
        assert decision.workers == 1 or rows // decision.workers >= spec.seats() * shape.engines
        assert decision.workers <= (limits.workers_max or 10_000)
    else:
        assert decision.workers <= spec.compute.workers
    if spec.chunk_rows is None:
        assert decision.workers <= math.ceil(rows / decision.chunk_rows)
    left = spec.deadline_seconds - decision.speed.start_up_s
    assert left >= WORK_SECONDS_MIN
    if decision.speed.basis is not Basis.UNKNOWN:
        assert decision.work_s is not None
        # The worker with the most rows computes whole chunks, of the size that the job says.
        portion = spec.chunk_rows or spec.rows_per_request
        most = min(rows, math.ceil(math.ceil(rows / portion) / decision.workers) * portion)
        assert decision.work_s == pytest.approx(most / decision.speed.rows_per_second)
        assert decision.finish_s is not None
        assert decision.work_s <= decision.usable_s
        assert decision.finish_s <= decision.speed.start_up_s + left * decision.speed.margin * (1 + 1e-9)


def feed_back(words: str, spec: JobSpec, rows: int, known: Known, limits: Limits) -> None:
    """Does what a way says, as a person would: writes it into the job's file, or raises the limits. Then the run fits."""
    body = spec.model_dump(mode="json")
    if words.startswith("compute: "):
        body["compute"] = yaml.safe_load(words.removeprefix("compute: "))
        known = replace(known, records={})  # They are of the worker that the job had.
    elif words.startswith("compute.workers: "):
        body["compute"]["workers"] = int(words.rpartition(" ")[2])
    elif words == "leave out compute.workers":
        body["compute"]["workers"] = None
    elif words == "leave out chunk_rows":
        body["chunk_rows"] = None
    elif words.startswith("deadline: "):
        body["deadline"] = words.removeprefix("deadline: ")
    elif words.startswith("at most "):
        rows = int(words.split()[2].replace(",", ""))
    else:
        for part in words.split(" and "):
            if part.startswith("NIGHTSHIFT_WORKERS_MAX="):
                limits = replace(limits, workers_max=int(part.partition("=")[2]))
            else:
                limits = replace(limits, quota=int(part.removeprefix("a quota of ").replace(",", "")))
    other = JobSpec.model_validate(body)
    if other.compute.worker().profile.hardware is not spec.compute.worker().profile.hardware:
        limits = replace(limits, quota=None)  # A person's word of a quota is of the job's own accelerator.
    decide(other, rows, known, limits)


@SETTINGS
@given(questions())
def test_bounds_are_kept_or_the_run_is_refused_with_ways_that_fit(asked: tuple[JobSpec, int, Known, Limits]) -> None:
    spec, rows, known, limits = asked
    refused = None
    try:
        check_bounds(decide(spec, rows, known, limits), spec, rows, limits)
    except Refused as error:
        refused = error
    if refused is None:
        return
    assert refused.problems
    assert len(refused.ways) <= WAYS
    for way in refused.ways:
        reply = answer(way.question)
        assert reply.fits
        assert reply == way.answer
        assert reply.work_s is not None
        assert reply.work_s <= way.question.usable_s
        assert reply.workers <= way.question.room
        assert way.words in str(refused)
        assert way.whole == (way.question.rows == rows)
        feed_back(way.words, spec, rows, known, limits)


@SETTINGS
@given(questions(), st.integers(1, 10**9))
def test_more_rows_never_get_fewer_workers(asked: tuple[JobSpec, int, Known, Limits], others: int) -> None:
    spec, rows, known, limits = asked
    few, many = sorted((rows, others))
    try:
        less, more = decide(spec, few, known, limits), decide(spec, many, known, limits)
    except Refused:
        assume(False)
    assert less.workers <= more.workers


@SETTINGS
@given(questions(), st.integers(0, 500))
def test_more_quota_never_refuses_what_less_accepts(asked: tuple[JobSpec, int, Known, Limits], more: int) -> None:
    spec, rows, known, limits = asked
    try:
        decision = decide(spec, rows, known, limits)
    except Refused:
        assume(False)
    larger = replace(limits, quota=None if limits.quota is None else limits.quota + more)

    assert decide(spec, rows, known, larger).workers >= decision.workers
    assert decide(spec, rows, known, replace(limits, quota=None)).workers >= decision.workers


@SETTINGS
@given(questions(), st.integers(1, 400))
def test_a_longer_deadline_never_gets_more_workers(asked: tuple[JobSpec, int, Known, Limits], hours: int) -> None:
    spec, rows, known, limits = asked
    longer = spec.model_copy(update={"deadline": f"{spec.deadline_seconds // 60 + 60 * hours}m"})
    try:
        tight = decide(spec, rows, known, limits)
    except Refused:
        assume(False)
    assert decide(longer, rows, known, limits).workers <= tight.workers


@SETTINGS
@given(questions(), st.floats(0, 3), st.integers(0, 10**12))
def test_the_exported_rows_fit_or_are_refused(asked: tuple[JobSpec, int, Known, Limits], part: float, size: int) -> None:
    spec, rows, known, limits = asked
    exported = int(rows * part)
    try:
        decision = decide(spec, rows, known, limits)
    except Refused:
        assume(False)
    try:
        workers, chunk, reasons = fixed(decision, spec, exported, size)
    except Refused:
        assert exported > rows
        return
    assert 1 <= workers <= min(decision.workers, max(1, math.ceil(exported / chunk)))
    assert (exported != rows) == any("had been counted" in reason for reason in reasons)
    rate = decision.speed.rows_per_second
    if rate and exported > rows:
        assert exported / (rate * decision.workers) <= decision.usable_s


@SETTINGS
@given(questions())
def test_a_decision_survives_its_json_form(asked: tuple[JobSpec, int, Known, Limits]) -> None:
    spec, rows, known, limits = asked
    try:
        decision = decide(spec, rows, known, limits)
    except Refused:
        assume(False)
    body = json.loads(json.dumps(decision.to_json()))

    assert Decision.from_json({**body, "of_a_later_release": 1}) == decision


@pytest.mark.parametrize("body", [None, [], {"version": 2}, {"version": 1}, {"version": 1, "speed": {"basis": "a guess"}}])
def test_what_is_not_a_decision(body: Any) -> None:
    with pytest.raises(NotADecision):
        Decision.from_json(body)


class TestWorkers:
    def test_the_deadline_decides(self) -> None:
        spec = a_spec(compute__rows_per_worker_per_second=10, deadline="2h", engine__max_num_seqs=64)

        # 2 h less 10 min of start-up, 70 % of it: 4,620 s, so 46,200 rows a worker.
        assert [decide(spec, rows, UNKNOWN).workers for rows in (46_200, 46_201, 462_000)] == [1, 2, 10]

    def test_no_rows_are_one_worker(self) -> None:
        assert decide(a_spec(**CHAT), 0, Known(tokens_of(a_spec()), model_of(configs.LLAMA3_70B))).workers == 1

    def test_what_the_job_says_wins(self) -> None:
        decision = decide(a_spec(compute__workers=3, chunk_rows=50), 1000, UNKNOWN, Limits(2))

        assert (decision.workers, decision.chunk_rows, decision.speed.basis) == (3, 50, Basis.UNKNOWN)

    @pytest.mark.parametrize("rows", [1, 10**6, 10**9])
    def test_with_an_unknown_speed_nothing_is_planned(self, rows: int) -> None:
        with pytest.raises(SpeedUnknown, match=r"unknown: its config\.json was not read\. Set compute\.workers"):
            decide(a_spec(), rows, UNKNOWN)
        assert [(row.workers, row.chosen, row.fits) for row in table(a_spec(), rows, UNKNOWN)] == [(0, False, None)]

    def test_but_no_rows_need_none(self) -> None:
        assert decide(a_spec(), 0, UNKNOWN).workers == 1

    def test_what_does_not_fit_at_any_speed_is_said_first(self) -> None:
        with pytest.raises(Refused, match="the queue's quota is 0"):
            decide(a_spec(**CHAT), 1000, UNKNOWN, Limits(quota=0))

    def test_who_only_looks_sees_one_worker_and_why(self) -> None:
        _, decision, problems = weigh(a_spec(), 10**6, UNKNOWN)

        assert (decision.workers, problems) == (1, ())
        assert "its speed is unknown, so the deadline was not checked" in decision.reasons[0]

    def test_workers_without_a_chunk_are_not_started(self) -> None:
        assert decide(a_spec(compute__workers=5, chunk_rows=4), 10, UNKNOWN).workers == 3

    def test_a_record_of_the_profile_is_believed_more_than_an_estimate(self) -> None:
        spec = a_spec(**CHAT)
        known = Known(tokens_of(spec), model_of(configs.LLAMA3_8B), "", {"gpu-l4-spot": a_record(5.0)})

        decision = decide(spec, 100_000, known)

        assert decision.speed.basis is Basis.MEASURED
        assert decision.speed.words == "measured in run job/2026-11-19/0123456789abcdef"
        assert (decision.speed.rows_per_second, decision.speed.start_up_s) == (5.0, 200.0)
        # 85 % of what is left of 3 h after 200 s: 9,010 s, so 45,050 rows a worker.
        assert decision.workers == 3

    def test_the_job_is_believed_more_than_a_record(self) -> None:
        spec = a_spec(**{**CHAT, "compute": {"profile": "gpu-l4-spot", "rows_per_worker_per_second": 7}})
        known = Known(tokens_of(spec), None, "", {"gpu-l4-spot": a_record(5.0)})

        assert decide(spec, 1000, known).speed.words == "stated by the job"

    def test_what_is_known_of_one_accelerator_is_not_said_of_eight(self) -> None:
        spec = a_spec(**{**CHAT, "compute": {"profile": "gpu-l4-spot", "rows_per_worker_per_second": 7}})
        known = Known(tokens_of(spec), model_of(configs.LLAMA3_8B), "", {"gpu-l4-spot": a_record(5.0), "gpu-l4": a_record(4.0)})
        eight = fit(PROFILES["gpu-l4-spot"], Span(tensor_parallel=8))

        assert speed_of(spec, spec.compute.worker(), known).basis is Basis.STATED
        assert speed_of(spec, spec.compute.worker("gpu-l4"), known).basis is Basis.MEASURED
        assert speed_of(spec, eight, known).basis is Basis.ESTIMATED
        assert speed_of(spec, eight, known).start_up_s == eight.load_seconds

    @pytest.mark.parametrize(("tokens", "least", "most"), [(50.0, 10.0, 20.0), (2000.0, 1.2, 4.0), (599.0, 5.0, 5.0)])
    def test_rows_of_other_lengths_go_at_another_speed(self, tokens: float, least: float, most: float) -> None:
        """Recorded: 5 rows/s of 500 tokens, and 256 of the answer. An L4 has room for three times as many short ones."""
        spec = a_spec(**CHAT)
        record = replace(a_record(5.0), row_tokens=500.0)
        known = Known(tokens_of(spec, tokens, "a sample"), model_of(configs.LLAMA3_8B), "", {"gpu-l4-spot": record})

        speed = speed_of(spec, spec.compute.worker(), known)

        assert speed.basis is Basis.MEASURED
        assert least <= speed.rows_per_second <= most
        scaled = f" with 500 input tokens per row, and scaled to {tokens:,.0f}" if least != most else ""
        assert speed.words == f"measured in run job/2026-11-19/0123456789abcdef{scaled}"
        assert speed.output_tokens == pytest.approx(10 * speed.rows_per_second / 5)
        assert speed.input_tokens == pytest.approx(100 * speed.rows_per_second / 5 * (tokens / 500 if scaled else 1))

    def test_vectors_of_texts_four_times_as_long_take_about_four_times_as_long(self) -> None:
        spec = a_spec(compute__profile="cpu", engine__max_model_len=256)
        record = replace(a_record(200.0), row_tokens=40.0)
        known = Known(tokens_of(spec, 160.0, "a sample"), model_of(configs.MINILM, "float32"), "", {"cpu": record})

        assert 45 <= speed_of(spec, spec.compute.worker(), known).rows_per_second <= 65

    @pytest.mark.parametrize("missing", ["sample", "record", "model", "memory"])
    def test_without_both_lengths_and_a_formula_the_recorded_speed_counts(self, missing: str) -> None:
        spec = a_spec(**CHAT)
        record = replace(a_record(5.0), row_tokens=None if missing == "record" else 500.0)
        tokens = tokens_of(spec, None if missing == "sample" else 2000.0, "a sample")
        config = configs.LLAMA3_70B if missing == "memory" else configs.LLAMA3_8B
        model = None if missing == "model" else model_of(config)

        speed = speed_of(spec, spec.compute.worker(), Known(tokens, model, "", {"gpu-l4-spot": record}))

        assert speed.rows_per_second == 5.0
        assert "scaled" not in speed.words

    @pytest.mark.parametrize(("rate", "believed"), [(0.001, False), (0.1, True), (5.0, True), (100.0, True), (1000.0, False)])
    def test_a_speed_that_no_such_worker_has_is_not_believed(self, rate: float, believed: bool) -> None:
        """The estimate is 1.5 rows/s: a record may be wrong by as much as an estimate can, and not by more."""
        spec = a_spec(**CHAT)
        known = Known(tokens_of(spec, 500, ""), model_of(configs.LLAMA3_8B), "", {"gpu-l4-spot": a_record(rate)})

        speed = speed_of(spec, spec.compute.worker(), known)

        assert (speed.basis is Basis.MEASURED) == believed
        assert believed or re.search(
            r"; the record of run job/\S+ says \S+ rows/s, and 1\.5\d? were to be expected", speed.words
        )

    @pytest.mark.parametrize(("seconds", "believed"), [(600.0, True), (601.0, False), (86_400.0, False)])
    def test_a_start_longer_than_the_profile_allows_is_not_believed(self, seconds: float, believed: bool) -> None:
        """Each later run would be refused for a day of start-up."""
        spec = a_spec(**CHAT)
        known = Known(tokens_of(spec), records={"gpu-l4-spot": a_record(5.0, start_up_s=seconds)})

        speed = speed_of(spec, spec.compute.worker(), known)

        assert speed.start_up_s == 600
        assert ("measured" in speed.start_up_words) == believed

    def test_a_start_that_was_only_half_seen_does_not_count(self) -> None:
        record = replace(a_record(5.0), start_up_s={"image": 3.0})
        spec = a_spec(**CHAT)

        assert speed_of(spec, spec.compute.worker(), Known(tokens_of(spec), records={"gpu-l4-spot": record})).start_up_s == 600

    def test_a_run_of_a_few_rows_says_how_workers_start_and_not_how_fast_they_are(self) -> None:
        """Ten rows to try the job out, at 0.2 rows/s: the night of a million would have been refused."""
        spec = a_spec(**CHAT)
        workload = workload_of(spec, "gpu-l4-spot")
        trial = replace(a_record(0.2), workload=workload, rows=10, work_s=50.0, workers=1)
        known = Known(tokens_of(spec), model_of(configs.LLAMA3_8B), "", {"gpu-l4-spot": trial})

        speed = decide(spec, 10**6, known).speed

        assert (speed.basis, speed.start_up_s) == (Basis.ESTIMATED, 200.0)
        assert speed.words.endswith("had less than max_num_seqs rows for each worker, so its speed says little")
        unknown = speed_of(spec, spec.compute.worker(), replace(known, model=None))
        assert (unknown.basis, unknown.rows_per_second) == (Basis.UNKNOWN, 0.0)

    def test_preemptions_need_more_workers(self) -> None:
        spec = a_spec(**CHAT)
        calm, stormy = (
            decide(spec, 10**6, Known(tokens_of(spec), None, "", {"gpu-l4-spot": a_record(5.0, preemptions=count)}))
            for count in (0, 10)
        )

        assert calm.workers < stormy.workers

    def test_a_worker_that_hardly_gets_to_work_has_a_long_way_to_go(self) -> None:
        """28 preemptions an hour, each of which costs 230 s: more than there is."""
        spec = a_spec(**CHAT)
        known = Known(tokens_of(spec), None, "", {"gpu-l4-spot": a_record(5.0, preemptions=111)})

        speed = speed_of(spec, spec.compute.worker(), known)

        assert speed.elapsed(60.0) == pytest.approx(1200.0)
        assert speed.working(speed.elapsed(60.0)) == pytest.approx(60.0)

    def test_a_record_of_other_settings_of_performance_is_said(self) -> None:
        spec = a_spec(**CHAT)
        workload = workload_of(a_spec(**{**CHAT, "engine__max_num_seqs": 64}), "gpu-l4-spot")
        same = replace(workload, performance=workload_of(spec, "gpu-l4-spot").performance)

        def words(each: Workload) -> str:
            record = replace(a_record(5.0), workload=each)
            return speed_of(spec, spec.compute.worker(), Known(tokens_of(spec), records={"gpu-l4-spot": record})).words

        assert words(workload) == "measured in run job/2026-11-19/0123456789abcdef (which had max_num_seqs: 64)"
        assert words(same) == "measured in run job/2026-11-19/0123456789abcdef"

    @pytest.mark.parametrize(
        ("ours", "theirs", "said"), [(2, 1, " (which had engines: 1)"), (1, 2, " (which had engines: 2)"), (2, 2, "")]
    )
    def test_a_record_of_another_number_of_engines_is_said_and_says_nothing_of_the_start(
        self, ours: int, theirs: int, said: str
    ) -> None:
        spec, other = (chat_with(engines) for engines in (ours, theirs))
        record = replace(a_record(5.0, start_up_s=120.0), workload=workload_of(other, "gpu-l4-spot"))

        found = speed_of(spec, spec.compute.worker(), Known(tokens_of(spec), records={"gpu-l4-spot": record}))

        assert found.words == f"measured in run {record.run}{said}"
        assert found.start_up_s == (600.0 * ours if said else 120.0), "they start one after another"

    def test_the_plan_says_how_many_engines_a_worker_has(self) -> None:
        known = Known(tokens_of(a_spec(**CHAT)), records={"gpu-l4-spot": a_record(50.0)})
        one, two = (decide(chat_with(engines), 100_000, known).reasons for engines in (1, 2))

        assert set(two) - set(one) >= {"each worker has 2 engines (compute.engines), which share its accelerator"}
        assert not any("engines" in each for each in one)


class TestAbsurdPlans:
    """What a planner that guesses accepts."""

    def test_a_million_chats_on_an_l4_in_three_hours(self) -> None:
        """At 400 rows/s one worker would do."""
        spec = a_spec(**CHAT)

        decision = decide(spec, 10**6, Known(tokens_of(spec, 500, "a sample"), model_of(configs.LLAMA3_8B)))

        assert 50 < decision.workers < 150
        assert "estimate: roofline from config.json" in decision.reasons[0]

    def test_nor_does_one_worker_do_that(self) -> None:
        spec = a_spec(**{**CHAT, "compute": {"profile": "gpu-l4-spot", "workers": 1}})

        with pytest.raises(Refused, match=r"1 worker would need .* h, but the deadline leaves 119 min") as refused:
            decide(spec, 10**6, Known(tokens_of(spec, 500, "a sample"), model_of(configs.LLAMA3_8B)))
        assert len(refused.value.ways) == WAYS

    def test_390_workers_for_4274_minutes_with_119_allowed(self) -> None:
        spec = a_spec(**{**CHAT, "compute": {"profile": "gpu-l4-spot", "rows_per_worker_per_second": 0.001}})

        with pytest.raises(Refused, match=r"390 workers would need 71\.4 h, but the deadline leaves 119 min") as refused:
            decide(spec, 100_000, Known(tokens_of(spec), model_of(configs.LLAMA3_8B)))
        assert len(refused.value.ways) == WAYS

    def test_595239_workers(self) -> None:
        """500 million rows at 20 rows/s in 11 minutes."""
        spec = a_spec(deadline="11m", compute__rows_per_worker_per_second=20)

        with pytest.raises(Refused, match="leaves 60 s after 10 min of start-up"):
            decide(spec, 500_000_000, UNKNOWN)
        longer = spec.model_copy(update={"deadline": "12m"})
        with pytest.raises(Refused, match="but there is room for 10,000 workers") as refused:
            decide(longer, 500_000_000, UNKNOWN)
        assert refused.value.ways[0].words.startswith("deadline: ")

    def test_five_minutes_that_leave_one(self) -> None:
        spec = a_spec(**CHAT).model_copy(update={"deadline": "5m"})
        known = Known(tokens_of(spec), None, "", {"gpu-l4-spot": a_record(100.0, start_up_s=240.0)})

        with pytest.raises(Refused, match="a deadline of 5 min leaves 60 s after 4 min of start-up") as refused:
            decide(spec, 1000, known)
        assert refused.value.ways[0].words == "deadline: 15m"

    def test_a_model_that_no_worker_of_the_profile_holds(self) -> None:
        spec = a_spec(**CHAT)

        with pytest.raises(Refused, match=r"its weights are 141\.1 GB, and gpu-l4-spot has room for 20\.4 GB") as refused:
            decide(spec, 1000, Known(tokens_of(spec), model_of(configs.LLAMA3_70B)))
        # 141 GB on 8 L4 of 24 GB, and on larger GPUs.
        assert all("profile: gpu-" in way.words for way in refused.value.ways)

    def test_a_quota_below_one_worker(self) -> None:
        spec = a_spec(**{**CHAT, "compute": {"profile": "gpu-h100", "tensor_parallel": 4}})

        with pytest.raises(Refused, match="1 worker with 4 accelerators: the queue's quota is 3"):
            decide(spec, 1000, Known(tokens_of(spec), model_of(configs.LLAMA3_8B)), Limits(quota=3))


class TestWholeChunks:
    """A chunk is computed by one worker, so what matters is who has the most of them."""

    def test_two_workers_do_not_halve_one_chunk(self) -> None:
        """A million and one rows in chunks of a million were planned as half a million each."""
        spec = a_spec(chunk_rows=1_000_000, compute__rows_per_worker_per_second=100, deadline="3h")

        with pytest.raises(Refused, match="no number of workers would do: 1,000,000 rows stay together") as refused:
            decide(spec, 1_000_001, UNKNOWN)
        assert "leave out chunk_rows" in [way.words for way in refused.value.ways]

    def test_workers_without_a_request_do_no_work(self) -> None:
        """1,000 rows in requests of 100 are ten requests: 300 workers are as fast as ten."""
        spec = a_spec(
            compute={"profile": "cpu", "workers": 300, "rows_per_worker_per_second": 0.01}, request__rows_per_request=100
        )

        with pytest.raises(Refused, match="10 workers would need 167 min"):
            decide(spec, 1000, UNKNOWN)

    def test_exported_rows_are_looked_at_in_the_same_way(self) -> None:
        spec = a_spec(
            chunk_rows=100_000, compute={"profile": "cpu", "workers": 2, "rows_per_worker_per_second": 25}, deadline="3h"
        )
        decision = decide(spec, 200_000, UNKNOWN)

        with pytest.raises(Refused, match="each would need"):
            fixed(decision, spec, 200_001, 0)


class TestRemedies:
    @pytest.mark.parametrize("hours", [100, 1000])
    def test_no_deadline_is_offered_that_a_job_may_not_have(self, hours: int) -> None:
        spec = a_spec(deadline="1h", compute={"profile": "cpu", "workers": 1, "rows_per_worker_per_second": 1})

        with pytest.raises(Refused) as refused:
            decide(spec, 3600 * hours, UNKNOWN)
        deadlines = [way.words for way in refused.value.ways if way.words.startswith("deadline: ")]
        assert bool(deadlines) == (hours == 100)

    def test_a_refusal_without_a_way_out_says_what_is_left(self) -> None:
        spec = a_spec(deadline="5m")

        with pytest.raises(Refused, match=r"it has to leave 2 min\..*set compute\.rows_per_worker_per_second") as refused:
            decide(spec, 1000, UNKNOWN, Limits(quota=0))
        assert refused.value.ways == ()

    def test_no_worker_is_offered_whose_accelerators_cannot_share_the_heads(self) -> None:
        """28 heads: 1, 2 and 4 GPUs."""
        spec = a_spec(**CHAT)

        with pytest.raises(Refused) as refused:
            decide(spec, 10**6, Known(tokens_of(spec), model_of(configs.QWEN25_7B)), Limits(2))
        assert refused.value.ways
        assert not any("tensor_parallel: 8" in way.words for way in refused.value.ways)
        with pytest.raises(Refused, match="28 attention heads cannot be divided among 8"):
            decide(
                spec.model_copy(update={"compute": a_spec(compute={"profile": "gpu-h100", "tensor_parallel": 8}).compute}),
                10,
                Known(tokens_of(spec), model_of(configs.QWEN25_7B)),
            )


class TestMoney:
    def test_ways_are_ranked_by_their_price_and_what_has_none_comes_last(self) -> None:
        spec = a_spec(**CHAT)
        known = Known(tokens_of(spec), model_of(configs.LLAMA3_8B))
        some = {"g2-standard-8-spot": 0.3}
        machines = ["g2-standard-8", "g2-standard-24", "g2-standard-48", "g2-standard-96", "a2-highgpu-1g", "a2-highgpu-2g"]
        machines += ["a2-highgpu-4g", "a2-highgpu-8g", *(f"a2-ultragpu-{count}g" for count in (1, 2, 4, 8))]
        machines += [*(f"a3-highgpu-{count}g" for count in (1, 2, 4, 8)), "a3-ultragpu-8g", "a4-highgpu-8g"]
        machines += [*(f"ct5lp-hightpu-{count}t" for count in (1, 4, 8)), *(f"ct6e-standard-{count}t" for count in (1, 4, 8))]
        flat = {f"{name}-spot": 1.0 if name != "ct5lp-hightpu-4t" else 0.001 for name in machines}
        asked = (spec, 10**6, known, Limits(workers_max=8))

        words = r"What would fit, the fewest accelerator hours first \(no price is known for these machines\): 1\. .*no price\."
        with pytest.raises(Refused, match=words):
            decide(*asked, {})
        with pytest.raises(Refused, match="the cheapest first, and last what has no price: ") as refused:
            decide(*asked, some)
        costs = [way.cost for way in refused.value.ways]
        assert None not in costs[: -costs.count(None)]
        assert costs[0] is not None, "never proposed first"
        assert refused.value.ways[-1].sentence.endswith(", no price")
        with pytest.raises(Refused, match="the cheapest first") as refused:
            decide(*asked, flat)
        costs = [way.cost for way in refused.value.ways]
        assert costs == sorted(costs, key=lambda cost: cost or 0.0)

    def test_a_machine_is_paid_whole(self) -> None:
        spec = a_spec(**{**CHAT, "compute": {"profile": "gpu-h100", "rows_per_worker_per_second": 10}})
        question = question_of(spec, 1000, UNKNOWN, Limits())
        found = answer(question)

        # 700 s of one H100: the invoice has the machine with 8.
        assert cost(question, found, {"a3-highgpu-8g": 80.0}) == pytest.approx(700 / 3600 * 80)
        assert cost(question, found, {"a3-highgpu-8g-spot": 80.0}) is None
        two = replace(found, workers=9)
        assert cost(question, two, {"a3-highgpu-8g": 80.0}) == pytest.approx(2 * 700 / 3600 * 80)
        assert decide(spec, 1000, UNKNOWN).reasons[1] == (
            "the cost is of 1 whole machine (a3-highgpu-8g, 8 accelerators); a worker uses 1 accelerator of one"
        )


def test_the_table_has_the_fallbacks_and_says_what_each_would_do() -> None:
    spec = a_spec(**CHAT)
    rows = table(spec, 10**6, Known(tokens_of(spec), model_of(configs.LLAMA3_8B)), Limits(100))
    assert {(row.start_up_s, row.at_most) for row in rows if row.chosen} == {(float(spec.compute.worker().load_seconds), True)}

    assert [row.profile for row in rows] == ["gpu-l4-spot"] * 3 + ["gpu-l4-flex"] * 3 + ["gpu-l4"] * 3
    half, planned, double = rows[:3]
    assert [row.chosen for row in rows] == [False, True] + [False] * 7
    assert (half.fits, planned.fits, double.fits) == (False, True, False)
    assert (planned.workers, double.problem) == (59, "the deployment allows 100")
    assert half.finish_s > planned.finish_s  # type: ignore[operator]


def test_a_stated_chunk_that_would_not_be_sealed_is_refused_before_a_machine_is_asked_for() -> None:
    spec = a_spec(chunk_rows=30_000, compute__workers=1, source__pass_through=["terms"])
    known = replace(UNKNOWN, copied={"id": 8.0, "terms": 20_000.0})

    with pytest.raises(Refused, match="a chunk of 30,000 rows would have 572 MiB of the column terms") as found:
        decide(spec, 100_000, known)
    assert "at most 512 MiB can be sealed: set chunk_rows to 13,421" in str(found.value)
    assert decide(spec, 20_000, known).rows == 20_000, "all of them are less than that"
    assert decide(a_spec(**{**CHAT, "chunk_rows": 13_421, "compute__workers": 1}), 100_000, known).chunk_rows == 13_421


def test_what_is_copied_still_counts_when_the_rows_are_exported() -> None:
    known = replace(UNKNOWN, copied={"terms": 20_000.0})
    decision = decide(a_spec(compute__workers=4), 24_000_000, known)
    stored = Decision.from_json(json.loads(json.dumps(decision.to_json())))

    assert stored == decision
    assert fixed(stored, a_spec(), 24_000_000, 24_000_000 * 16)[1] == decision.chunk_rows == 1_676
    earlier = {name: value for name, value in decision.to_json().items() if name != "copied_bytes"}
    assert Decision.from_json(earlier) == replace(decision, copied_bytes=0.0)
