"""Costs: parts that add up to what was paid, whatever marks say; prices from a file; the bill."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.planner.costs.bill import Bill, Machine, Rung, bill, estimate, operations
from nightshift.planner.costs.prices import OURS, Prices, PricesError, load_prices
from nightshift.planner.costs.report import by_job, latest, lines
from nightshift.planner.costs.split import PARTS, Life, Parts, apportion, split
from nightshift.planner.measured import Seen, measure
from nightshift.planner.plan import Decision
from nightshift.planner.speed import Basis, Speed
from nightshift.profiles import PROFILES, Profile, Provisioning, Span, fit, misfits
from nightshift.profiles.hardware import Tpu
from nightshift.run.chunks import Part
from nightshift.run.observed.heartbeats import Ended, Heartbeat
from nightshift.run.observed.pod_startup import RAN, Starts
from nightshift.status.text import cost_lines
from nightshift.warehouse.audit import money

pytestmark = pytest.mark.unit

BORN = "2026-11-20T01:00:00+00:00"
PRICES = Prices("EUR", {"g2-standard-8-spot": 0.6, "g2-standard-8": 1.5}, 6.0, 0.005, 0.0004, "test")
L4 = Machine("g2-standard-8-spot", 1.0)
WELL = Life(
    before_s=60.0,
    age_s=1000.0,
    tail_s=0.0,
    start_up_s=40.0,
    work_s=900.0,
    engine_wait_s=100.0,
    rows=80,
    rows_used=60,
    rows_lost=20,
    well=True,
)

# A loaded machine is slow, and that is no failure.
SETTINGS = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
seconds = st.floats(0, 1e6)
counts = st.integers(0, 10**9)
marks = st.builds(
    Heartbeat,
    attempt=st.sampled_from(["a", "b", "c", "d"]),
    profile=st.sampled_from(["gpu-l4-spot", "gpu-l4", ""]),
    role=st.just("owner"),
    index=st.integers(0, 3),
    node=st.just("n"),
    pod=st.sampled_from(["p", "q", "r"]),
    cpus=st.just(8.0),
    born_at=st.just(BORN),
    at=st.just(BORN),
    age_s=seconds,
    next_s=seconds,
    ended=st.none() | st.sampled_from(Ended),
    rows_answered=counts,
    rows_dead=counts,
    rows_lost=counts,
    work_s=seconds,
    engine_wait_s=seconds,
    start_up_s=st.just({}) | st.builds(lambda each: {"weights": each}, seconds),
)
parts_of_chunks = st.builds(Part, st.sampled_from(["a", "b", "c", "d", "e"]), st.just("n"), st.just("0"), counts)
starts = st.builds(
    Starts, st.dictionaries(st.sampled_from(["p", "q"]), st.dictionaries(st.sampled_from(["image", "weights", RAN]), seconds))
)


class TestParts:
    """Show 4 of issue 15: the sum of the parts equals paid machine time x price."""

    @SETTINGS
    @given(st.lists(marks, max_size=6, unique_by=lambda mark: mark.attempt), st.lists(parts_of_chunks, max_size=6), starts)
    def test_they_add_up_exactly_whatever_marks_ledger_and_clusters_say(
        self, found: list[Heartbeat], used: list[Part], cluster: Starts
    ) -> None:
        seen = Seen(tuple(found), frozenset(mark.attempt for mark in found), cluster)
        measured = measure(seen, used, lambda profile: Machine("g2-standard-8-spot" if profile else "", 0.375))
        made = bill(measured, PRICES, rows=1, tokens=1)

        assert made is not None
        for rung in made.rungs:
            assert rung.parts is not None
            assert all(getattr(rung.parts, name) >= 0 for name in PARTS)
            if (cost := rung.cost(rung.parts)) is not None:
                assert cost["paid"] == sum(cost[name] for name in PARTS)
                assert abs(
                    Fraction(rung.parts.paid) * Fraction(0.6) * rung.machine.whole(rung.workers) / 3_600_000
                    - Fraction(cost["paid"], 10**6)
                ) <= Fraction(1, 2 * 10**6)
        said = made.to_json()
        for rung in said["rungs"]:
            for side in filter(None, (rung["actual"]["seconds"], rung["actual"]["cost"])):
                assert Decimal(str(side["paid"])) == sum(Decimal(str(side[name])) for name in PARTS)

    @SETTINGS
    @given(st.lists(marks, min_size=1, max_size=6, unique_by=lambda mark: mark.attempt))
    def test_what_is_paid_is_what_attempts_lived(self, found: list[Heartbeat]) -> None:
        seen = Seen(tuple(found), frozenset(mark.attempt for mark in found))
        profiles = measure(seen, [])["profiles"]

        lived = sum(mark.age_s + mark.next_s / 2 for mark in found)
        assert sum(each["machine_s"]["paid"] for each in profiles) == pytest.approx(lived, abs=0.01)

    @SETTINGS
    @given(st.integers(0, 10**12), st.lists(st.fractions(0, 10**9), min_size=1, max_size=6))
    def test_shares_are_whole_and_miss_nothing(self, total: int, shares: list[Fraction]) -> None:
        found = apportion(total, shares)

        assert sum(found) == (total if any(shares) else 0)
        if whole := sum(shares):
            assert all(abs(each - total * share / whole) < 1 for each, share in zip(found, shares, strict=True))

    @pytest.mark.parametrize(("workers", "machines"), [(1, 1), (3, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
    def test_workers_that_share_a_machine_pay_for_whole_ones(self, workers: int, machines: int) -> None:
        shape = fit(PROFILES["gpu-h200-spot"], Span())
        count = Machine(shape.price_name, shape.machines).whole(workers)

        assert shape.machines_of(workers) == count * workers == machines
        half = Machine("g2-standard-24", 0.5)
        rung = Rung("p", half, 7.2, parts=Parts(useful=3_600_000), estimate=Parts(useful=3_600_000), workers=1, planned=2)
        assert rung.cost(rung.parts) == {**dict.fromkeys(PARTS, 0), "paid": 7_200_000, "useful": 7_200_000}
        assert (rung.cost(rung.estimate) or {})["paid"] == 3_600_000, "two workers of half a machine each"
        assert rung.to_json()["machines_per_worker"] == 1.0

    def test_a_share_below_0_is_refused(self) -> None:
        with pytest.raises(ValueError, match="below 0"):
            apportion(1, [2, -1])

    def test_of_an_attempt_that_ended_well(self) -> None:
        assert split(WELL) == Parts(useful=600_000, twice=200_000, start_up=100_000, idle=160_000)

    def test_rows_of_it_that_nobody_used_were_computed_twice(self) -> None:
        assert split(replace(WELL, rows_used=40)) == Parts(useful=400_000, twice=400_000, start_up=100_000, idle=160_000)

    def test_of_one_that_was_killed_the_start_up_and_what_is_in_no_chunk_are_lost(self) -> None:
        found = split(replace(WELL, rows_used=40, well=False))

        assert found == Parts(useful=400_000, twice=200_000, lost=1_060_000 - 600_000)

    def test_after_its_newest_mark_it_worked_on_at_its_pace(self) -> None:
        """80 rows in 800 s, and 10 more in 100 s; that the ledger has more than the mark is no contradiction."""
        found = split(replace(WELL, tail_s=100.0, rows_used=90, rows_lost=0, well=False))

        assert found == Parts(useful=900_000, lost=260_000)

    def test_one_that_was_killed_before_its_engine_answered_is_all_lost(self) -> None:
        killed = replace(WELL, start_up_s=None, work_s=0.0, engine_wait_s=0.0, rows=0, rows_used=0, rows_lost=0, well=False)

        assert split(killed) == Parts(lost=1_060_000)
        assert split(replace(killed, well=True)) == Parts(start_up=1_060_000)

    def test_one_that_was_answered_no_row_was_idle(self) -> None:
        found = split(replace(WELL, rows=0, rows_used=0, rows_lost=0))

        assert found == Parts(start_up=100_000, idle=960_000)

    def test_seconds_survive_json(self) -> None:
        assert Parts.from_json(split(WELL).to_json()) == split(WELL)


class TestStarts:
    """What clusters know of an attempt beside its marks."""

    MARK = Heartbeat("a", "gpu-l4-spot", "owner", 0, "n", "p", 8.0, BORN, BORN, 100.0, next_s=10.0)

    def test_a_pod_is_paid_for_once_it_has_a_machine(self) -> None:
        cluster = Starts({"p": {"queue": 1000.0, "node": 100.0, "image": 40.0, "weights": 160.0}})

        assert cluster.before_s(self.MARK) == 200.0
        assert cluster.before_s(replace(self.MARK, pod="q")) is None

    def test_a_cluster_knows_better_than_marks_when_a_driver_was_killed(self) -> None:
        assert Starts({"p": {RAN: 108.0}}).tail_s(self.MARK) == 8.0
        assert Starts({"p": {RAN: 99.0}}).tail_s(self.MARK) == 0.0, "it counts whole seconds"
        assert Starts().tail_s(self.MARK) == 5.0
        assert Starts({"p": {RAN: 108.0}}).tail_s(replace(self.MARK, ended=Ended.DONE, next_s=0.0)) == 0.0

    def test_how_long_it_ran_is_no_stage_of_its_start(self) -> None:
        assert Starts({"p": {RAN: 108.0, "node": 1.0}}).stages(self.MARK) == {"node": 1.0}

    def test_an_attempt_whose_start_nobody_saw_took_as_long_as_the_others(self) -> None:
        found = [replace(self.MARK, attempt=name, pod=name, ended=Ended.DONE, next_s=0.0) for name in "abc"]
        cluster = Starts({"a": {"image": 10.0}, "b": {"image": 30.0}})
        (profile,) = measure(Seen(tuple(found), frozenset("abc"), cluster), [])["profiles"]

        assert (profile["machine_s"]["paid"], profile["starts_assumed"]) == (3 * 100.0 + 10.0 + 30.0 + 20.0, 1)


def spans_of(profile: Profile) -> list[Span]:
    """Of each machine that it has."""
    if isinstance(profile.hardware, Tpu):
        spans = [Span(topology=name) for name in profile.hardware.slices]
    elif profile.hardware:
        spans = [Span(tensor_parallel=machine.accelerators) for machine in profile.hardware.machines]
    else:
        spans = [Span()]
    return [span for span in spans if not list(misfits(profile, span))]


class TestPrices:
    @pytest.mark.parametrize("region", OURS)
    def test_ours_say_a_date_and_a_source_for_each(self, region: str) -> None:
        import yaml

        body = yaml.safe_load(OURS[region].read_text())
        entries = [*body["machines"].values(), *body["bigquery"].values(), *body["storage"].values()]

        assert all(entry["date"] and entry["source"] in body["sources"] for entry in entries)

    def test_ours_are_of_machines_that_profiles_use(self) -> None:
        used = {fit(profile, Span()).price_name for profile in PROFILES.values()}

        assert {"g2-standard-8", "g2-standard-8-spot", "a2-highgpu-1g-spot", "a3-highgpu-1g-spot"} <= used & set(
            load_prices().machines
        )

    @pytest.mark.parametrize("region", OURS)
    def test_what_has_no_price_in_ours_is_on_the_page(self, region: str) -> None:
        """So each profile has a price, or is said to have none."""
        page = (Path(__file__).parents[3] / "docs/operate/capacity.md").read_text()
        [none] = re.findall(rf"^\| {region} \| (.*) \|$", page, re.MULTILINE)
        unpriced, priced = set(), load_prices(region).machines
        for profile in PROFILES.values():
            for span in spans_of(profile):
                shape = fit(profile, span)
                bought = profile.provisioning in (Provisioning.FLEX_START, Provisioning.RESERVATION)
                if shape.price_name not in priced and shape.paid and not bought:
                    unpriced.add(shape.paid.name)

        assert unpriced == set(re.findall(r"`([^`]+)`", none))

    def test_ours_are_of_two_regions(self) -> None:
        assert load_prices() == load_prices("us-central1")
        assert load_prices("europe-west4").name == "the list prices of europe-west4 in this release"
        with pytest.raises(PricesError, match="This release has list prices of europe-west4 and us-central1; for others write"):
            load_prices("mars-north1")

    def test_a_file_of_yours_takes_their_place(self, tmp_path: Path) -> None:
        file = tmp_path / "prices.json"
        file.write_text(
            '{"currency": "EUR", "machines": {"cpu": {"on-demand": 0.05}, '
            '"g2-standard-8": {"flex-start": 0.4, "reservation": 0}}}'
        )

        bought = {"g2-standard-8-flex": 0.4, "g2-standard-8-reservation": 0.0}
        assert load_prices(file) == Prices("EUR", {"cpu": 0.05, **bought}, name=str(file))

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            ("[]", "it is not a YAML mapping"),
            ("a: [", ":1: This is not valid YAML: "),
            ("machines: {}", "currency: None is not a currency. Write its three letters"),
            ("currency: usd", "currency: 'usd' is not a currency"),
            ("currency: USD\nmachine: {}", "machine: There is no such key. Did you mean 'machines'?"),
            ("currency: USD\nmachines: 3", "machines: It is not a mapping"),
            ("currency: USD\nmachines: {g2-standard-9: {spot: 1}}", "machines.g2-standard-9: No profile uses a machine"),
            (
                "currency: USD\nmachines: {g2-standard-8: 0.5}",
                "machines.g2-standard-8: 0.5 does not say how the machine is bought",
            ),
            ("currency: USD\nmachines: {g2-standard-8: {Spot: 1}}", "machines.g2-standard-8.Spot: There is no such key"),
            ("currency: USD\nmachines: {g2-standard-8: {spot: -1}}", "machines.g2-standard-8.spot: -1 is not a price"),
            ("currency: USD\nmachines: {g2-standard-8: {spot: .nan}}", "spot: nan is not a price"),
            ("currency: USD\nmachines: {g2-standard-8: {spot: 1.0e+308}}", "spot: 1e+308 is not a price"),
            ("currency: USD\nmachines: {g2-standard-8: {spot: .inf}}", "spot: inf is not a price"),
            ("currency: USD\nmachines: {g2-standard-8: {spot: -0.1}}", "spot: -0.1 is not a price"),
            ("currency: USD\nmachines: {g2-standard-8: {spot: $1}}", "spot: '$1' is not a price"),
            ("currency: USD\nmachines: {cpu: {spot: 1}}", "machines.cpu.spot: There is no such key"),
            ("currency: USD\nmachines: {cpu: {on-demand: 1, date: today}}", "machines.cpu.date: 'today' is not a date"),
            ("currency: USD\nmachines: {cpu: {on-demand: 1, source: x}}", "machines.cpu.source: 'x' is not one of the sources"),
            ("currency: USD\nbigquery: {per_tb: 1}", "bigquery.per_tb: There is no such key. Did you mean 'per_tib'?"),
            ("currency: USD\nbigquery: 6.25", "bigquery: It is not a mapping"),
            (
                "currency: USD\nmachines: {cpu: {on-demand: 1, date: 2026-13-45}}",
                "machines.cpu.date: '2026-13-45' is not a date",
            ),
            ("currency: USD\nmachines: {cpu: {on-demand: 1:30}}", "machines.cpu.on-demand: '1:30' is not a price"),
            (f"currency: USD\nmachines: {{cpu: {{on-demand: 1{'0' * 400}}}}}", "machines.cpu.on-demand: '1000"),
            (f"currency: USD\nmachines: {{cpu: {{on-demand: {'9' * 90}.0e999}}}}", "machines.cpu.on-demand: "),
            (
                "currency: USD\nmachines:\n  cpu: {on-demand: 1}\n  cpu: {on-demand: 2}",
                "machines.cpu: The key 'cpu' appears twice",
            ),
            (
                "currency: USD\nmachines: {cpu: {on-demand: 1, on-demand: 2}}",
                "machines.cpu.on-demand: The key 'on-demand' appears",
            ),
            ("currency: USD\n1: 2", "1: There is no such key"),
            ("a: &a [x]\ncurrency: *a", ":1: A file of prices cannot use the YAML anchor &a"),
            ("currency: " + "[" * 9000, ":1: The YAML is nested more than"),
            ("currency: USD # " + "x" * 200_000, "bytes are too many for a file of prices"),
            ("", "it is not a YAML mapping"),
            ("currency: USD\nstorage: {class_a_per_1000: {}}", "storage.class_a_per_1000.price: None is not a price"),
        ],
    )
    def test_bad_files_say_where_and_what_to_write(self, tmp_path: Path, body: str, problem: str) -> None:
        file = tmp_path / "prices.yaml"
        file.write_text(body)

        with pytest.raises(PricesError) as error:
            load_prices(file)

        assert f"{file}:" in str(error.value)
        assert problem in str(error.value)

    def test_a_folder_and_what_is_no_text_are_no_prices(self, tmp_path: Path) -> None:
        (tmp_path / "prices.yaml").write_bytes(b"currency: \xff")

        for file in (tmp_path, tmp_path / "prices.yaml", tmp_path / "none.yaml"):
            with pytest.raises(PricesError, match="it cannot be read as YAML"):
                load_prices(file)

    def test_all_mistakes_are_said_at_once(self, tmp_path: Path) -> None:
        file = tmp_path / "prices.yaml"
        file.write_text("machines: {g2-standard-8: {spot: -1, flex: 2}}")

        with pytest.raises(PricesError) as error:
            load_prices(file)

        assert len(str(error.value).splitlines()) == 3


DELIVERED: Any = {"chunks": 50, "rows": 2000, "tokens": 2_000_000}


def measured_of(**changes: Any) -> dict[str, Any]:
    profile = {
        "profile": "gpu-l4-spot",
        "attempts": 3,
        "machine": "g2-standard-8-spot",
        "machines": 1.0,
        "machine_s": Parts(useful=3_600_000, start_up=360_000, idle=0, twice=0, lost=1_440_000).to_json(),
        "starts_assumed": 0,
        **changes,
    }
    return {"attempts": 3, "not_seen": 0, "marks": 100, "profiles": [profile]}


def a_decision(**changes: Any) -> Decision:
    speed = Speed(10.0, Basis.STATED, "stated", 300.0, "stated", 1.0)
    known = {"profile": "gpu-l4-spot", "rows": 2000, "workers": 2, "chunk_rows": 40, "deadline_s": 7200.0, "usable_s": 3000.0}
    return Decision(**{**known, "work_s": 1000.0, "finish_s": 1400.0, "speed": speed, "reasons": (), **changes})


class TestBill:
    def made(self, **changes: Any) -> Bill:
        found = bill(
            measured_of(), PRICES, **DELIVERED, **{"estimated": (a_decision(), L4), "bigquery_bytes": 1 << 39, **changes}
        )
        assert found is not None
        return found

    def test_of_a_run_with_its_estimate_beside_it(self) -> None:
        said = self.made().to_json()
        (rung,) = said["rungs"]

        assert rung["actual"]["cost"] == {"paid": 0.9, "useful": 0.6, "start_up": 0.06, "idle": 0.0, "twice": 0.0, "lost": 0.24}
        assert rung["estimated"]["seconds"] == {
            "paid": 2800.0,
            "useful": 2000.0,
            "start_up": 600.0,
            "idle": 0.0,
            "twice": 0.0,
            "lost": 200.0,
        }
        assert (said["machines"], said["machines_estimated"]) == (0.9, pytest.approx(2800 / 3600 * 0.6, abs=1e-6))
        assert said["bigquery"] == {"bytes_billed": 1 << 39, "cost": 3.0}
        class_a, class_b = operations(50, 3, 100)
        assert said["storage"]["cost"] == pytest.approx(class_a * 5e-6 + class_b * 4e-7, abs=1e-6)
        assert said["total"] == pytest.approx(3.9 + said["storage"]["cost"])
        assert said["per_million_tokens"] == pytest.approx(said["total"] / 2)
        assert said["per_thousand_rows"] == pytest.approx(said["total"] / 2)

    def test_a_rung_that_was_planned_and_never_got_a_machine_is_in_it(self) -> None:
        planned = a_decision(profile="gpu-l4-flex")
        first, second = self.made(estimated=(planned, Machine("g2-standard-8-flex", 1.0))).rungs

        assert (first.profile, first.parts, first.cost(first.estimate)) == ("gpu-l4-flex", None, None)
        assert (second.profile, second.estimate) == ("gpu-l4-spot", None)

    def test_a_machine_without_a_price_makes_the_total_unknown_and_is_named(self) -> None:
        found = bill(measured_of(machine="a4-highgpu-8g-spot"), PRICES, **DELIVERED)

        assert found is not None
        said = found.to_json()
        assert (said["total"], said["machines"], said["per_million_tokens"]) == (None, None, None)
        assert said["unpriced"] == ["a4-highgpu-8g-spot"]
        assert said["rungs"][0]["actual"]["seconds"]["paid"] == 5400.0

    @pytest.mark.parametrize(("machine", "total"), [("cpu", None), ("g2-standard-8-spot", 0)])
    def test_nothing_costs_nothing_only_on_a_machine_with_a_price(self, machine: str, total: int | None) -> None:
        """Before the first heartbeat, and of a night that failed before: the same unknown as afterwards."""
        nothing = {**measured_of(), "profiles": [], "attempts": 0, "marks": 0}
        found = bill(
            nothing,
            replace(PRICES, class_a_per_1000=0, class_b_per_1000=0),
            own=("profile", Machine(machine, 1.0)),
        )

        assert found is not None
        assert (found.machines, found.total) == (total, total)
        assert found.to_json()["unpriced"] == ([] if total == 0 else ["cpu"])
        assert cost_lines(found)[0].startswith(
            "cost      unknown: there is no price for cpu" if total is None else "cost      0.00 EUR"
        )
        row = money(found.to_json())
        assert (row["cost"], row["machine_seconds"]) == (total, 0.0)
        jobs, everything = by_job([{"job": "j", "run_id": "r", "published_at": 1, **row}])
        assert ("unknown" in list(lines(jobs, everything))[1]) == (total is None)

    def test_a_machine_that_was_only_planned_needs_no_price_for_the_total(self) -> None:
        found = self.made(estimated=(a_decision(profile="gpu-b200-spot"), Machine("a4-highgpu-8g", 1.0)))

        assert (found.unpriced, found.machines, found.estimate) == ((), 900_000, None)

    def test_attempts_without_a_mark_are_said(self) -> None:
        made = bill({**measured_of(), "not_seen": 2}, PRICES, **DELIVERED)

        assert made is not None
        assert made.to_json()["attempts_not_seen"] == 2

    def test_what_nobody_asked_bigquery_is_not_in_the_total(self) -> None:
        assert self.made(bigquery_bytes=None).total == (self.made().total or 0) - 3_000_000

    def test_a_run_of_no_rows_has_no_price_for_each(self) -> None:
        found = bill(measured_of(), PRICES, chunks=50)

        assert found is not None
        assert (found.to_json()["per_million_tokens"], found.to_json()["per_thousand_rows"]) == (None, None)
        assert cost_lines(found)[0].endswith(" EUR without BigQuery")

    def test_operations_are_those_of_a_simulated_run(self) -> None:
        """13 chunks and 10 marks of one calm attempt: 88 creates and listings, without those of the seal and of documents."""
        assert operations(13, 1, 10)[0] == pytest.approx(88, rel=0.2)

    def test_a_speed_that_was_unknown_estimates_nothing(self) -> None:
        assert estimate(a_decision(work_s=None, finish_s=None)) is None

    @pytest.mark.parametrize("measured", [None, {}, {"profiles": [{"profile": "cpu"}]}])
    def test_without_what_was_paid_for_there_is_none(self, measured: dict[str, Any] | None) -> None:
        assert bill(measured, PRICES, **DELIVERED) is None


def a_row(run: str | None, day: int, **changes: Any) -> dict[str, Any]:
    moment = datetime(2026, 11, day, 3, tzinfo=UTC)
    row: dict[str, Any] = {
        "job": "job",
        "run_id": run,
        "by_dag_run_id": f"night-{day}",
        "published_at": moment,
        "input_rows": 1000,
    }
    row |= {"prompt_tokens": 900_000, "output_tokens": 100_000, "cost": 2.0, "cost_estimated": 1.5, "currency": "USD"}
    return {**row, "machine_seconds": 3600.0, "bigquery_bytes": 10, "state": "published", **changes}


def a_failure(run: str | None, day: int, **changes: Any) -> dict[str, Any]:
    moment = datetime(2026, 11, day, 3, tzinfo=UTC)
    return a_row(run, day, **{"published_at": None, "failed_at": moment, "state": "failed", "failed_task": "infer", **changes})


class TestReport:
    """`nightshift costs`: rows of the audit table, each with the cost of its run so far."""

    def test_runs_and_failures_of_two_jobs(self) -> None:
        jobs, total = by_job([a_row("a", 1), a_row("b", 2, job="other"), a_failure("c", 3, cost=0.5)])

        assert list(jobs) == ["job", "other"]
        assert jobs["job"].to_json() == {
            "runs": 1,
            "failed": 1,
            "rows": 1000,
            "tokens": 1_000_000,
            "machine_seconds": 7200.0,
            "bigquery_bytes": 20,
            "cost": {"USD": 2.5},
            "estimated": {"USD": 3.0},
            "runs_without_cost": 0,
            "per_million_tokens": 2.5,
            "per_thousand_rows": 2.5,
        }
        assert (total.runs, total.failed, total.costs) == (2, 1, {"USD": 4_500_000})

    def test_a_run_counts_once_however_often_it_failed_was_repaired_and_published_again(self) -> None:
        rows = [a_row("a", 9, cost=3.0), a_failure("a", 1, cost=1.0), a_failure("a", 2, cost=2.0), a_row("a", 5, cost=3.0)]
        _, total = by_job(rows)

        assert (total.runs, total.failed, total.costs) == (1, 0, {"USD": 3_000_000})
        assert [row["cost"] for row in latest(rows[1:3])] == [2.0]

    def test_a_publication_counts_though_the_run_failed_later(self) -> None:
        """Published again in vain: what it had published stays."""
        _, total = by_job([a_failure("a", 9, cost=3.5), a_row("a", 5, cost=3.0)])

        assert (total.runs, total.failed, total.costs) == (1, 0, {"USD": 3_000_000})

    def test_a_dag_run_that_failed_before_it_had_a_run_counts_unless_it_was_repaired(self) -> None:
        nothing = {"cost": None, "currency": None, "machine_seconds": None, "input_rows": None}
        lost = a_failure(None, 1, failed_task="plan", **nothing)

        assert by_job([lost])[1].to_json() | {"failed": 1, "runs_without_cost": 0} == by_job([lost])[1].to_json()
        assert by_job([lost, a_row("a", 1)])[1].failed == 0

    def test_a_dag_run_that_failed_without_a_run_and_then_with_one_failed_once(self) -> None:
        plan = a_failure(None, 1, failed_task="plan", cost=None)

        assert by_job([plan, a_failure("a", 1)])[1].failed == 1
        assert by_job([plan, a_failure("a", 1, job="other")])[1].failed == 2, "DAG runs of two jobs may have one name"

    def test_two_deployments_that_share_the_table_have_two_runs_of_one_name(self) -> None:
        """One job file in both: 100 and 700 were paid, and 700 was said."""
        _, total = by_job([a_row("a", 1, bucket="east", cost=100.0), a_row("a", 2, bucket="west", cost=700.0)])

        assert (total.runs, total.costs) == (2, {"USD": 800_000_000})

    def test_so_have_their_failures(self) -> None:
        plans = [a_failure(None, 1, failed_task="plan", cost=None, bucket=bucket) for bucket in ("east", "west")]

        assert by_job(plans)[1].failed == 2
        assert by_job([*plans, a_row("a", 1, bucket="east")])[1].failed == 1, "one was repaired"

    def test_a_redo_completes_a_run_of_its_own_bucket(self) -> None:
        redo = a_row("b", 2, completes="a", bucket="east")

        assert by_job([a_row("a", 1, bucket="east"), redo])[1].rows == 1000
        assert by_job([a_row("a", 1, bucket="west"), redo])[1].rows == 2000

    def test_rows_of_an_earlier_release_are_of_the_bucket_that_later_rows_name(self) -> None:
        """Of the same run, then of the same job; without any, all are of one."""
        old, repaired = a_row("a", 1, cost=1.0), a_failure(None, 1, cost=None)

        assert by_job([old, a_row("a", 2, bucket="east", cost=3.0)])[1].costs == {"USD": 3_000_000}
        assert by_job([old, a_row("a", 2, cost=3.0)])[1].costs == {"USD": 3_000_000}
        assert by_job([repaired, a_row("b", 1, bucket="east")])[1].failed == 0
        both = [a_row("a", 2, bucket=bucket, cost=3.0) for bucket in ("east", "west")]
        assert by_job([old, *both])[1].costs == {"USD": 6_000_000}

    def test_rows_that_a_redo_completes_count_once(self) -> None:
        """A redo of 40 rows, and one of what was left of these: each has the partition's 1,000 rows, and its own tokens."""
        first = a_row("b", 2, completes="a", prompt_tokens=40, output_tokens=0, cost=0.5)
        second = a_row("c", 3, completes="b, a", prompt_tokens=4, output_tokens=0, cost=0.25)
        _, total = by_job([a_row("a", 1), first, second, a_row("b", 4, job="other")])

        assert (total.runs, total.rows, total.priced_rows, total.tokens) == (4, 2000, 2000, 2_000_044)
        assert total.to_json()["per_thousand_rows"] == pytest.approx((2.0 + 0.5 + 0.25 + 2.0) / 2)
        assert by_job([first])[1].rows == 1000, "nobody knows of the run that it completes"

    def test_rows_without_a_cost_are_named(self) -> None:
        old = {"job": "job", "run_id": "old", "published_at": datetime(2026, 11, 1, tzinfo=UTC), "input_rows": 5}
        jobs, total = by_job([old, a_row("a", 2)])

        assert (total.runs, total.unpriced, total.priced_rows) == (2, 1, 1000)
        assert list(lines(jobs, total))[-1].startswith("Of 1 run the cost is unknown: there is no price")

    @pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
    def test_what_somebody_has_written_by_hand_costs_its_own_row(self, odd: float) -> None:
        rows = [a_row("a", 1), a_row("b", 2, cost=odd, machine_seconds=odd), a_row("c", 3, cost_estimated=odd)]
        _, total = by_job(rows)

        assert (total.runs, total.unpriced, total.costs) == (3, 1, {"USD": 4_000_000})
        assert (total.machine_seconds, total.estimates) == (7200.0, {"USD": 1_500_000})

    def test_currencies_are_not_mixed(self) -> None:
        jobs, total = by_job([a_row("a", 1), a_row("b", 2, currency="EUR")])

        assert total.to_json()["cost"] == {"EUR": 2.0, "USD": 2.0}
        assert total.to_json()["per_million_tokens"] is None
        assert "2.00 EUR + 2.00 USD" in list(lines(jobs, total))[-1]
