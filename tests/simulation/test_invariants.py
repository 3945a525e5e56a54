"""Each invariant of the design, and a test named after it that tries to break it.

1 conservation          here, with the real codec and the real seal; tests/unit/run/test_ledger.py
2 exactly once          here; tests/unit/run/test_ledger.py
3 bounded loss          here; tests/integration/driver/{test_bounds,test_faults}.py and tests/chaos, with real processes
4 no mixing             here; tests/unit/run/test_run.py (what makes a run another run)
5 flat memory           here, by bytes; tests/integration/driver/test_bounds.py and benchmarks/, a process's memory
6 one bad row           here; tests/unit/driver/test_scheduler.py
7 atomic publishing     tests/integration/warehouse/test_publish.py
8 exit code 0           here; tests/integration/driver/{test_bounds,test_faults}.py

Here each is a schedule made for it, under many draws of chance; tests/simulation/test_schedules.py draws the schedules too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.worker import WorkerLimits
from nightshift.run.order import Order
from nightshift.run.plan import InputFile, Plan
from tests.simulation.check import Violated
from tests.simulation.codecs import LightCodec
from tests.simulation.engines import OUTAGES, Climate, Failing, Fails
from tests.simulation.rows import Nature, Rows
from tests.simulation.scenario import RUN, WORK, Event, Scenario
from tests.simulation.storage import Weather
from tests.simulation.world import Report, simulate

pytestmark = [pytest.mark.simulation, pytest.mark.gate]

DRAWS = 60


def a_scenario(
    *,
    rows: int = 48,
    chunk_rows: int = 6,
    workers: int = 2,
    natures: dict[int, Nature] | None = None,
    weather: Weather | None = None,
    climate: Climate | None = None,
    events: Sequence[Event] = (),
    **changes: Any,
) -> Scenario:
    """A calm schedule with what the test puts into it."""
    plan = Plan(
        RUN.run_id, rows, chunk_rows, workers, (InputFile("inputs/a.parquet", rows, (rows,), 1, "e"),), uid=WORK.plan_uid
    )
    calm = Scenario(
        seed=0,
        plan=plan,
        rows=Rows(rows, natures or {}),
        rows_per_request=2,
        limits=WorkerLimits(window_start=4, window_most=16),
        weather=weather or Weather(),
        climate=climate or Climate(row_s=1.0),
        reader_error=0.0,
        thread_s=0.01,
        planted=False,
        events=tuple(events),
        calm_at=30.0,
        real_codec=False,
    )
    return replace(calm, **changes)


def run(scenario: Scenario, draws: int = DRAWS) -> list[Report]:
    """The schedule under many draws of chance; raises Violated for the first that breaks an invariant."""
    return [simulate(seed, change=lambda _, seed=seed: replace(scenario, seed=seed)) for seed in range(draws)]  # type: ignore[misc]


def seen(reports: Sequence[Report]) -> Counter[str]:
    return sum((report.seen for report in reports), Counter())


def often(what: str, *, times: int = 4, until: float = 20.0, seconds: float = 10.0) -> list[Event]:
    """The same event again and again, at different pods."""
    rng = random.Random(what)
    return [Event(rng.uniform(0.5, until), what, rng.random(), rng.uniform(0.5, seconds)) for _ in range(times)]


def test_1_conservation_with_every_kind_of_bad_row_by_the_real_seal() -> None:
    natures = {3 * number: nature for number, nature in enumerate(Nature)}

    run(a_scenario(natures=natures, events=often("kill"), real_codec=True), draws=4)


def test_1_conservation_whatever_storage_does() -> None:
    weather = Weather(
        lost_reply=0.15,
        never=0.15,
        late=0.15,
        resent=0.1,
        slow=0.1,
        read_error=0.3,
        list_error=0.3,
        page=2,
        outages=((12.0, 18.0),),
    )

    reports = run(a_scenario(weather=weather, events=[*often("kill"), *often("drain")], reader_error=0.2))

    counts = seen(reports)
    assert min(counts[f"store: {fate}"] for fate in ("lost_reply", "never", "late", "resent", "slow", "outage", "list"))


def test_1_to_8_of_rows_that_are_planned_in_an_order() -> None:
    """Their files are buckets of very different sizes, one of them without a whole chunk, and rows that are bad alike are
    neighbours, whole chunks of them."""
    buckets = (1, 17, 3, 27)
    files = tuple(
        InputFile(f"inputs/0-part-{n:05d}-000000000000.parquet", rows, (rows,), 1, "e") for n, rows in enumerate(buckets)
    )
    order = Order(("prefix",), len(buckets), 1, "ordered by prefix")
    plan = Plan(RUN.run_id, sum(buckets), 6, 2, files, uid=WORK.plan_uid, order=order)
    kinds = [Nature.TOO_LONG, Nature.BAD_INPUT, Nature.REJECTED, Nature.POISON]
    natures = {6 * kind + row: nature for kind, nature in enumerate(kinds[:3]) for row in range(6)} | {47: kinds[3]}
    events = [*often("kill", times=2), *often("drain", times=2), *often("twin", times=2), *often("freeze", times=2)]
    weather = Weather(lost_reply=0.1, never=0.1, late=0.1, read_error=0.2)

    for real in (False, True):
        draws = 4 if real else 30
        run(a_scenario(plan=plan, natures=natures, events=events, weather=weather, real_codec=real), draws=draws)


def test_2_exactly_once_when_every_home_has_two_owners_and_zombies_wake() -> None:
    events = [*often("twin", times=3, until=3.0), *often("freeze", times=4), *often("freeze_long", times=2, until=6.0)]

    reports = run(a_scenario(events=events, weather=Weather(latency_s=0.2)))

    assert seen(reports)["creates that found the object there"] > DRAWS


def twins_compute() -> float:
    """How often each row is computed when two workers have the same home."""
    reports = run(
        a_scenario(
            rows=60,
            chunk_rows=3,
            workers=1,
            events=[Event(0.1, "twin", 0.0, 1.0)],
            climate=Climate(row_s=1.0, seats=4),
            limits=WorkerLimits(window_start=4, window_most=4),
        ),
        draws=20,
    )
    return sum(report.computed for report in reports) / sum(report.rows for report in reports)


def test_2_twins_part_after_the_first_lost_race() -> None:
    assert twins_compute() < 1.6


def test_2_exactly_once_when_a_copy_arrives_long_after_its_writer_died() -> None:
    weather = Weather(late=0.6, late_s=200.0)

    run(a_scenario(weather=weather, events=often("kill", times=6)))


def test_2_exactly_once_when_a_writer_finds_its_own_copy() -> None:
    reports = run(a_scenario(workers=1, weather=Weather(resent=0.5, lost_reply=0.5)))

    assert all(report.computed == report.rows for report in reports), "no copy of its own is taken for another's"


def test_2_exactly_once_when_several_attempts_saved_the_same_rows() -> None:
    events = [Event(0.5, "twin", 0.0, 1.0), *often("drain", times=6, until=8.0)]

    reports = run(a_scenario(chunk_rows=24, rows=24, workers=1, events=events))

    assert seen(reports)["chunks with rows of earlier attempts"]


@pytest.mark.parametrize("trouble", ["nothing", "engine_stall", "slow store"])
def test_3_a_drain_saves_every_finished_row_in_15_seconds(trouble: str) -> None:
    weather = Weather(slow=0.5, slow_s=60.0) if trouble == "slow store" else Weather()
    events = [*often("drain"), *often("drain_twice")]
    if trouble == "engine_stall":
        events += [Event(event.time - 0.5, "engine_stall", event.pick, 30.0) for event in events]

    reports = run(a_scenario(weather=weather, events=sorted(events, key=lambda event: event.time)))

    assert seen(reports)["partials"] or trouble == "slow store"


def test_3_a_drain_costs_what_was_in_flight_and_no_more() -> None:
    reports = run(a_scenario(rows=40, workers=1, events=often("drain", times=3), climate=Climate(row_s=0.5)))

    # A worker that drains lets its requests land, 6 s at most: nothing of this is lost.
    assert all(report.computed == report.rows for report in reports)


def test_3_nothing_committed_is_computed_again() -> None:
    events = [*often("kill", times=6), *often("helper", times=2), *often("twin", times=2)]

    run(a_scenario(events=events, weather=Weather(page=1)))


def test_4_no_mixing_with_runs_beside_it_and_partials_that_lie() -> None:
    run(a_scenario(planted=True, events=often("drain")))


@pytest.mark.parametrize(("buffer_bytes", "window_most"), [(1, 4), (400, 2), (256 << 20, 16)])
def test_5_flat_memory_is_a_window_of_rows_and_a_buffer_of_chunks(buffer_bytes: int, window_most: int) -> None:
    limits = WorkerLimits(window_start=4, window_most=window_most, buffer_bytes=buffer_bytes)

    run(a_scenario(rows=60, chunk_rows=2, limits=limits, weather=Weather(outages=((2.0, 25.0),))), draws=20)


def test_5_a_chunk_that_cannot_be_encoded_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one chunk: the attempt does all the others, asks to be resumed, and the next one does that chunk."""
    encode = LightCodec.encode

    def refusing(self: LightCodec, chunk: OpenChunk, keys: pa.Table) -> bytes:
        if chunk.number == 1 and self.attempt == "0.0":
            raise ValueError("unforeseen")
        return encode(self, chunk, keys)

    monkeypatch.setattr(LightCodec, "encode", refusing)
    limits = WorkerLimits(window_start=4, window_most=16, buffer_bytes=1)

    with pytest.raises(Violated) as caught:
        run(a_scenario(workers=1, limits=limits), draws=1)

    # That is no way to end in order, and the checker says so, but it is an end. (Memory: what an error refers to is kept.)
    assert {line.split(":")[0] for line in caught.value.violations} <= {"bounded loss", "exit code", "flat memory"}


@pytest.mark.parametrize("nature", list(Nature))
@pytest.mark.parametrize("rows_per_request", [1, 8])
def test_6_one_bad_row_never_costs_another_row(nature: Nature, rows_per_request: int) -> None:
    natures = {5: nature, 29: nature}

    run(a_scenario(natures=natures, rows_per_request=rows_per_request, climate=Climate(row_s=0.2, timeout_s=60.0)), draws=10)


def test_6_bad_rows_of_every_kind_beside_each_other_are_told_apart() -> None:
    natures = dict(enumerate(Nature))

    run(a_scenario(natures=natures, rows=24, rows_per_request=8, climate=Climate(row_s=0.2, timeout_s=60.0)), draws=20)


def test_6_more_rows_that_never_end_than_an_attempt_may_blame() -> None:
    natures = dict.fromkeys(range(5, 17), Nature.SLOW)
    # The second attempt finds nothing left but these.
    drain = Event(100.0, "drain", 0.0, 0.0)

    run(
        a_scenario(
            natures=natures,
            workers=1,
            rows_per_request=1,
            climate=Climate(row_s=0.2, seats=32, timeout_s=60.0),
            limits=WorkerLimits(window_start=16, window_most=64),
            events=[drain],
            calm_at=110.0,
        ),
        draws=2,
    )


@pytest.mark.parametrize("how", OUTAGES)
@pytest.mark.parametrize("start", [0.0, 3.0])
def test_6_an_engine_that_fails_everybody_for_five_minutes_costs_no_row(how: Fails, start: float) -> None:
    climate = Climate(row_s=0.5, failing=(Failing(start, start + 300.0, how),))

    reports = run(a_scenario(climate=climate, calm_at=400.0, workers=1), draws=5)

    assert all(report.pods == 1 for report in reports), "no worker gives up"


@pytest.mark.parametrize("how", OUTAGES)
def test_6_a_worker_leaves_an_engine_that_answers_nobody_after_its_budget(how: Fails) -> None:
    """An hour of it: attempt after attempt makes way for the next engine, and no row is given up."""
    climate = Climate(row_s=0.5, failing=(Failing(3.0, 3600.0, how),))

    reports = run(a_scenario(climate=climate, calm_at=3700.0, workers=1), draws=2)

    assert all(3 <= report.pods <= 5 for report in reports)


@pytest.mark.parametrize("nature", [Nature.ERROR, Nature.INVALID, Nature.SLOW])
@pytest.mark.parametrize("bad", [range(1), range(1, 48), range(47, 48), range(24, 48)])
def test_6_bad_rows_become_dead_letters_though_nothing_else_is_left(nature: Nature, bad: range) -> None:
    climate = Climate(row_s=0.2, timeout_s=60.0)
    # A later attempt finds nothing but bad rows.
    drain = Event(30.0, "drain", 0.0, 0.0)

    run(a_scenario(natures=dict.fromkeys(bad, nature), workers=1, climate=climate, events=[drain], calm_at=40.0), draws=3)


def test_6_a_bad_row_is_told_from_an_engine_that_fails_with_one_request_in_flight() -> None:
    limits = WorkerLimits(window_start=1, window_most=1)

    reports = run(a_scenario(natures={0: Nature.ERROR}, workers=1, rows_per_request=1, limits=limits), draws=5)

    assert all(report.pods == 1 for report in reports), "no worker takes it for the engine's fault"


@pytest.mark.parametrize("nature", [Nature.ERROR, Nature.INVALID, Nature.SLOW])
@pytest.mark.parametrize("rows_per_request", [1, 8])
def test_6_a_run_of_bad_rows_alone_ends(nature: Nature, rows_per_request: int) -> None:
    natures = dict.fromkeys(range(4), nature)
    climate = Climate(row_s=0.2, timeout_s=60.0)

    run(a_scenario(rows=4, natures=natures, workers=1, rows_per_request=rows_per_request, climate=climate), draws=3)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_6_more_rows_that_kill_the_engine_than_an_attempt_may_lose_it(count: int) -> None:
    run(a_scenario(natures=dict.fromkeys(range(count), Nature.POISON), rows=count, workers=1), draws=5)


TWO_ENGINES: dict[str, Any] = {"workers": 1, "engines": 2, "limits": WorkerLimits(window_start=4, window_most=4)}


def one_of_two_is_away() -> list[Report]:
    """For longer than a worker waits for its only engine."""
    climate = Climate(row_s=15.0, seats=2, timeout_s=400.0)
    away = [Event(3.0, "engine_away", 0.0, 1.0)]
    return run(a_scenario(rows=200, chunk_rows=10, climate=climate, events=away, calm_at=1000.0, **TWO_ENGINES), draws=2)


def one_of_two_fails_everybody(how: Fails) -> list[Report]:
    climate = Climate(row_s=0.5, failing=(Failing(1.0, 300.0, how, first=1),))
    return run(a_scenario(climate=climate, calm_at=20.0, **TWO_ENGINES), draws=12)


def three_of_four_fail_everybody() -> list[Report]:
    climate = Climate(row_s=0.5, failing=(Failing(1.0, 300.0, Fails.ERROR, first=3),))
    return run(a_scenario(rows=96, climate=climate, calm_at=20.0, **{**TWO_ENGINES, "engines": 4}), draws=12)


def one_of_two_serves_another_model() -> list[Report]:
    """Three times, for longer than a worker waits for its only engine in the end."""
    climate = Climate(row_s=5.0, seats=2, strange=((1.0, 9.0), (15.0, 20.0), (30.0, 600.0)))
    return run(a_scenario(rows=300, chunk_rows=10, climate=climate, calm_at=1000.0, **TWO_ENGINES), draws=4)


def one_of_two_hangs() -> list[Report]:
    climate = Climate(row_s=0.5, metrics=False, timeout_s=400.0)
    hangs = [Event(1.0, "engine_stall", 0.0, 200.0)]
    return run(a_scenario(rows=600, climate=climate, events=hangs, calm_at=300.0, **TWO_ENGINES), draws=2)


def test_6_a_worker_goes_on_while_one_of_its_engines_is_away() -> None:
    reports = one_of_two_is_away()

    assert all(report.pods == 1 for report in reports), "no worker gives up"


@pytest.mark.parametrize("how", OUTAGES)
def test_6_an_engine_that_fails_everybody_beside_another_costs_no_row(how: Fails) -> None:
    reports = one_of_two_fails_everybody(how)

    assert all(report.pods == 1 for report in reports), "no worker gives up"


def test_6_three_of_four_that_fail_everybody_cost_no_row() -> None:
    assert all(report.pods == 1 for report in three_of_four_fail_everybody()), "no worker gives up"


def test_6_an_engine_that_serves_another_model_is_left_out_beside_another_and_costs_no_row() -> None:
    reports = one_of_two_serves_another_model()

    assert all(report.pods == 1 for report in reports), "no worker gives up"


def test_6_what_an_engine_has_that_hangs_goes_to_the_other() -> None:
    reports = one_of_two_hangs()

    assert all(report.took_s < 302 for report in reports), "the rows did not wait for 400 s"


def test_6_engines_that_die_and_reset_condemn_no_innocent_row() -> None:
    climate = Climate(reset=0.2, failed=0.2, aborted=0.2, invalid=0.2, busy=0.2, downtime_s=2.0)

    run(a_scenario(climate=climate, events=often("engine_death", times=8)))


def test_8_exit_code_0_means_committed_whenever_the_worker_is_told_to_go() -> None:
    events = [*often("drain", times=8), *often("drain_then_kill", times=2), *often("helper", times=2)]

    run(a_scenario(weather=Weather(late=0.2, lost_reply=0.2, latency_s=0.2), events=events))


def test_8_an_engine_that_stays_away_is_no_success() -> None:
    reports = run(a_scenario(workers=1, events=often("engine_away", times=2, until=5.0)), draws=20)

    assert all(report.pods > 1 for report in reports), "the worker gave its place to another"
