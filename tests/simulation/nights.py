"""Nights of 1,000 workers, as far as their workers, their capacity and the clock go, under the real rules: the forecast
(`nightshift.jobset.fleet.forecast`) and the policy (`nightshift.jobset.fleet.policy`).

A step is a minute. Each worker is a number: when it works, and how fast. The fault model, drawn from the seed:

- the speed that the plan believes is wrong by a factor between 0.5 and 2
- workers differ (0.7 to 1.3 of the mean), and a few nodes are slow (0.3)
- starting takes a worker 0.4 to 1.1 times what the plan believes; a preempted one comes back when there is room, and starts
  again
- storms: for 20 to 70 minutes Spot takes workers ten to forty times as often, and gives fewer than before
- profiles run full: Spot has room for the planned workers and for few or many more; what comes after it has as many as the
  quota

A run is asked what it does without keeping the deadline, too. What a rule may not do is checked from what happened, not from
its own constants: `Violated` says which night broke what.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from nightshift.jobset.fleet import deadline, fallback, forecast, policy
from nightshift.jobset.fleet.memory import FleetMember, FleetState
from nightshift.jobset.fleet.records import WatchReport
from nightshift.jobset.fleet.watch import CHECK_S, WAKE_S
from tests.simulation.check import Violated

STEP_S: Final = 60.0
WORKERS: Final = 1000
SPEED: Final = 1.0
"""Rows a second of a worker, as the plan believes."""
MARGIN: Final = 0.7
"""The share of a deadline that the planner fills if the speed is an estimate."""
START_S: Final = 600.0
CHUNK_ROWS: Final = 60
SEQS: Final = 64
PROFILES: Final = ("spot", "on-demand")
HOLD_S, HELPS, LATE, IN_TIME = 300.0, 3, 0.95, 0.85
"""What is promised; the rule's own constants may be broken."""
FELT_S: Final = 900.0
"""After a storm, its preempted workers are back and at work within 13 minutes."""


@dataclass(frozen=True)
class Storm:
    """rate: preemptions per worker and hour. room: how many workers Spot has."""

    begins: float
    ends: float
    rate: float
    room: int


@dataclass(frozen=True)
class Scenario:
    """truth: of the believed speed. quota: workers in all. spot: room for them outside of storms."""

    seed: int
    hours: float
    truth: float
    quota: int
    spot: int
    calm_rate: float
    storms: tuple[Storm, ...]

    @property
    def deadline(self) -> float:
        return self.hours * 3600

    @property
    def rows(self) -> int:
        return round(MARGIN * (self.deadline - START_S) * WORKERS * SPEED)

    def weather(self, at: float) -> tuple[float, int]:
        """Preemptions per worker and hour, and Spot's room."""
        for storm in self.storms:
            if storm.begins <= at < storm.ends:
                return storm.rate, storm.room
        return self.calm_rate, self.spot


def draw(seed: int) -> Scenario:
    chance = random.Random(seed)
    hours = chance.choice((2.0, 3.0, 5.0))
    storms = []
    for _ in range(chance.choice((0, 1, 1, 2))):
        begins = chance.uniform(0, hours * 3600 * 0.8)
        room = chance.choice((0, 100, 300, 600))
        storms.append(Storm(begins, begins + chance.uniform(20, 70) * 60, chance.uniform(1, 4), room))
    return Scenario(
        seed,
        hours,
        truth=2 ** chance.uniform(-1, 1),
        quota=round(WORKERS * chance.choice((1.0, 1.5, 2.0, 3.0))),
        spot=round(WORKERS * chance.choice((1.0, 1.2, 3.0))),
        calm_rate=0.1,
        storms=tuple(storms),
    )


@dataclass
class Worker:
    """works_from: when it can begin; inf while it waits for a machine. back_at: when it may be given one again."""

    speed: float
    works_from: float = math.inf
    back_at: float = 0.0


@dataclass
class JobSet:
    """The counts are those of `nightshift.jobset.kubernetes.follow.JobSetCounts`, since the last decision."""

    profile: str
    helps: bool
    submitted: float
    workers: list[Worker]
    turned_at: float = 0.0
    short: bool = True
    disruptions: int = 0
    worked_s: float = 0.0
    worked_before_s: float = 0.0
    held: int = 0
    running: int = 0

    def counts(self, now: float) -> dict[str, float]:
        since = now - self.turned_at
        return {
            "wanted": len(self.workers),
            "running": self.running,
            "short_s": since if self.short else 0.0,
            "held_s": 0.0 if self.short else since,
            "disruptions": self.disruptions,
            "worked_s": self.worked_s,
        }

    def begin_counting(self, now: float) -> None:
        """A new follower follows it: after a decision."""
        self.worked_before_s += self.worked_s
        self.turned_at, self.short, self.disruptions, self.worked_s = now, True, 0, 0.0


@dataclass
class Night:
    """What happened. hours: of machines, start-up included. helped: (time, workers, profile). looks: (time, end, left)."""

    scenario: Scenario
    met: bool = False
    end_s: float = math.inf
    hours: float = 0.0
    helped: list[tuple[float, int, str]] = field(default_factory=list)
    fell: list[tuple[float, str]] = field(default_factory=list)
    looks: list[tuple[float, float, float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def decisions(self) -> int:
        return len(self.helped) + len(self.fell)


class World:
    """One night. kept: whether the deadline is kept; falling back is always on, as it was before."""

    def __init__(self, scenario: Scenario, *, kept: bool) -> None:
        self.night = Night(scenario)
        self._scenario = scenario
        self._kept = kept
        self._chance = random.Random(f"{scenario.seed} cloud")
        self._now = 0.0
        self._left = float(scenario.rows)
        self._commits: list[tuple[float, float]] = []
        self._open = 0.0
        self._jobsets: dict[str, JobSet] = {}
        self._made = 0
        self._report: WatchReport | None = None
        self._defer(forecast.Watch(forecast.WatchState(SPEED), CHUNK_ROWS))
        self._submit(PROFILES[0], WORKERS, helps=False)

    def run(self) -> Night:
        night, deadline = self.night, self._scenario.deadline
        while self._now < deadline and self._left > 0:
            self._minute()
            if self._kept and self._now >= self._next_look and self._left > 0:
                self._next_look += CHECK_S
                self._look()
            if self._left > 0:
                self._fall_back()
            if self._now >= self._wake_at:
                self._wake()
        night.met, night.end_s = self._left <= 0, self._now if self._left <= 0 else math.inf
        night.wrong += wrong_with(night)
        return night

    def _submit(self, profile: str, workers: int, *, helps: bool) -> None:
        fleet = [Worker(SPEED * self._scenario.truth * self._nodes()) for _ in range(workers)]
        self._made += 1
        self._jobsets[f"{profile}-{self._made}"] = JobSet(profile, helps, self._now, fleet, turned_at=self._now)
        asked = sum(len(each.workers) for each in self._jobsets.values() if each.helps or each.profile == PROFILES[0])
        if helps and asked > max(self._scenario.quota, WORKERS):
            self.night.wrong.append(f"room: {asked} workers are asked for, of {self._scenario.quota}")

    def _nodes(self) -> float:
        return 0.3 if self._chance.random() < 0.03 else self._chance.uniform(0.7, 1.3)

    def _minute(self) -> None:
        """Machines are given and taken, and what is computed is committed, except for half a chunk of each worker that runs."""
        rate, spot = self._scenario.weather(self._now)
        gone = 1 - math.exp(-rate * STEP_S / 3600)
        quota = self._scenario.quota
        for jobset in self._jobsets.values():
            room = spot if jobset.profile == PROFILES[0] else 10**9
            others = [each for each in self._jobsets.values() if each is not jobset]
            alike = sum(each.held for each in others if each.profile == jobset.profile)
            self._tick(jobset, min(room - alike, quota - sum(each.held for each in others)), gone)
        self._now += STEP_S
        done = max(0.0, self._open - CHUNK_ROWS / 2 * sum(each.running for each in self._jobsets.values()))
        self._open -= done
        self._left -= done
        if done:
            self._commits.append((self._now, done))

    def _tick(self, jobset: JobSet, room: int, gone: float) -> None:
        now, chance = self._now, self._chance.random
        held, running, spot = jobset.held, 0, jobset.profile == PROFILES[0]
        for worker in jobset.workers:
            if worker.works_from == math.inf:
                if held < room and worker.back_at <= now:
                    held += 1
                    worker.works_from = now + START_S * self._chance.uniform(0.4, 1.1)
                continue
            if spot and (held > room or chance() < gone):
                held -= 1
                jobset.disruptions += worker.works_from <= now
                worker.works_from, worker.back_at = math.inf, now + 2 * STEP_S
                continue
            if worker.works_from <= now:
                running += 1
                self._open += worker.speed * STEP_S
        self.night.hours += held * STEP_S / 3600
        jobset.held, jobset.running = held, running
        jobset.worked_s += running * STEP_S
        short = running < fallback.enough(len(jobset.workers))
        if short != jobset.short:
            jobset.short, jobset.turned_at = short, now

    def _wake(self) -> None:
        """The task makes its next trigger, whose watch knows of the last one's its state."""
        self._defer(forecast.Watch(self._watch.state, CHUNK_ROWS))

    def _defer(self, watch: forecast.Watch) -> None:
        self._watch, self._next_look, self._wake_at = watch, self._now + CHECK_S, self._now + WAKE_S

    def _look(self) -> None:
        """As the trigger does."""
        now = self._now
        window = self._watch.window_s(now)
        recent = round(sum(rows for at, rows in self._commits if at > now - window))
        rows = forecast.Rows(round(self._left), round(self._scenario.rows - self._left), recent)
        fleets = {
            name: forecast.Fleet(
                len(each.workers), each.running, each.worked_before_s + each.worked_s, each.submitted + START_S
            )
            for name, each in self._jobsets.items()
        }
        found = self._watch.forecast(now, rows, fleets, deadline=self._scenario.deadline)
        self.night.looks.append((now, math.inf if found.end_s is None else found.end_s, found.left_s))
        self.night.wrong += self._misjudged(found)
        asked = {name: deadline.Asked(each.profile, len(each.workers), each.helps) for name, each in self._jobsets.items()}
        terms = deadline.Terms(
            PROFILES, START_S, self._scenario.quota, max(1, round(self._left) // SEQS), helped=len(self.night.helped)
        )
        decision = deadline.decide(found, asked, terms)
        self._report = WatchReport(
            self._watch.state, found.late, decision.why, decision.workers, decision.profile, decision.drop
        )
        change = self._decided([])
        if change.add:
            if starting := [name for name, fleet in fleets.items() if fleet.ready_at > now and fleet.running < fleet.wanted]:
                self.night.wrong.append(f"starting: help at {now:.0f} s while {starting} start")
            if IN_TIME * found.left_s < 2 * START_S:
                self.night.wrong.append(f"vain: help at {now:.0f} s, {found.left_s:.0f} s before the deadline")
            self.night.wrong += self._too_small(decision.workers, found, asked)
            self.night.helped.append((now, decision.workers, decision.profile))
            for name in change.drop:
                if taken := self._jobsets.pop(name).running:
                    self.night.wrong.append(f"direction: {taken} workers are taken away from a night that is late")
            self._submit(change.add.profile, change.add.workers, helps=change.add.helps)
            self._wake()

    def _misjudged(self, found: forecast.Forecast) -> Iterator[str]:
        """Whether after an hour the forecast still has another speed than the workers that run."""
        speeds = [worker.speed for each in self._jobsets.values() for worker in each.workers if worker.works_from <= self._now]
        if (
            self._now > 3600
            and len(speeds) > WORKERS / 2
            and not 0.65 < found.speed / (truth := sum(speeds) / len(speeds)) < 1.5
        ):
            yield f"speed: {found.speed:.2f} rows/s are believed at {self._now:.0f} s, and it is {truth:.2f}"

    def _too_small(self, workers: int, found: forecast.Forecast, asked: dict[str, deadline.Asked]) -> Iterator[str]:
        """Whether more workers were asked for than start-up lets come in time, or too few although there was room."""
        have = sum(each.wanted for each in asked.values())
        if have + workers >= self._scenario.quota or not math.isfinite(found.end_s or math.inf):
            return
        within = IN_TIME * found.left_s
        able = sum(each.workers for each in found.fleets.values()) * within + workers * (within - START_S)
        if able * found.speed < 0.99 * found.left:
            yield f"size: {workers} workers at {self._now:.0f} s do not end it in time, by its own forecast"

    def _fall_back(self) -> None:
        """As the task does when the trigger wakes it: starved or disrupted."""
        left_s = self._scenario.deadline - self._now
        patience = min(fallback.PATIENCE_S, left_s / fallback.PATIENCE_SHARE)
        profiles = {each.profile for each in self._jobsets.values()}
        if profiles == {PROFILES[-1]}:
            return
        starved = any(each.counts(self._now)["short_s"] > patience for each in self._jobsets.values())
        disrupted = any(each.disruptions >= max(fallback.DISRUPTIONS_MIN, WORKERS) for each in self._jobsets.values())
        if not starved and not disrupted:
            return
        measured = [fallback.measured(each.profile, each.counts(self._now)) for each in self._jobsets.values()]
        change = self._decided(measured)
        running = sum(self._jobsets.pop(name).running for name in change.drop)
        if self._report and self._report.late and running:
            self.night.wrong.append(f"direction: {running} workers are taken away from a night that is late")
        if change.add or change.drop:
            self.night.fell.append((self._now, change.why))
        for each in self._jobsets.values():
            each.begin_counting(self._now)
        if change.add:
            self._submit(change.add.profile, change.add.workers or WORKERS, helps=change.add.helps)
        self._wake()

    def _decided(self, measured: list[fallback.Measured]) -> policy.Change:
        """By the policy, as the task asks it. measured: of a night that may have to leave a profile."""
        members = {
            name: FleetMember(number, each.profile, len(each.workers), each.helps)
            for number, (name, each) in enumerate(self._jobsets.items(), 1)
        }
        wanted = policy.Wanted(PROFILES, WORKERS, chunks=self._scenario.rows // CHUNK_ROWS)
        left_s = self._scenario.deadline - self._now
        seen = policy.Seen(members, self._report, measured, left_s)
        return policy.decide(wanted, FleetState().with_all(tuple(members.values())), seen)


def wrong_with(night: Night) -> Iterator[str]:
    """What the decisions of a whole night may not look like."""
    if len(night.helped) > HELPS:
        yield f"bound: {len(night.helped)} JobSets helped"
    for (one, *_), (two, *_) in zip(night.helped, night.helped[1:], strict=False):
        if two - one < START_S * 0.4:
            yield f"calm: help at {one:.0f} s and again at {two:.0f} s"
    for at, workers, _ in night.helped:
        before = [(end, left) for when, end, left in night.looks if at - HOLD_S <= when <= at]
        if any(end < IN_TIME * left for end, left in before) or not any(end > LATE * left for end, left in before):
            yield f"hold: {workers} workers at {at:.0f} s, although the forecast was in time less than {HOLD_S:.0f} s before"
        if at < HOLD_S or len(before) < HOLD_S // CHECK_S:
            yield f"hold: {workers} workers at {at:.0f} s, after {len(before)} looks"


def simulate(seed: int) -> Night:
    """Raises Violated."""
    return checked(draw(seed))


def checked(scenario: Scenario) -> Night:
    """A night whose deadline is kept, held against the same night without, as it looked when help was asked for first. Raises
    Violated."""
    night = World(scenario, kept=True).run()
    if night.helped:
        without = World(_foreseen(scenario, night.helped[0][0]), kept=False).run()
        if without.end_s < 0.75 * scenario.deadline and not without.fell:
            night.wrong.append(
                f"needless: {len(night.helped)} JobSets help a night that ends at {without.end_s:.0f} s without them"
            )
    if night.wrong:
        raise Violated(scenario.seed, night.wrong)
    return night


def _foreseen(scenario: Scenario, at: float) -> Scenario:
    """The rest of the night, for one who cannot know when a storm ends: one that is on or has been felt just now goes on."""
    begun = [storm for storm in scenario.storms if storm.begins < at]
    storms = (replace(storm, ends=scenario.deadline) if storm.ends > at - FELT_S else storm for storm in begun)
    return replace(scenario, storms=tuple(storms))
