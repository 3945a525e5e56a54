"""What a user can change so that a run which cannot fit does: the three cheapest ways, each checked by the planner itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from nightshift.fields.text import minutes, n
from nightshift.fields.values import DURATION_SECONDS_MAX
from nightshift.planner.feasibility import Prices, Sizing, SizingRequest, accelerator_hours, answer, cost
from nightshift.planner.roofline import CannotStart
from nightshift.planner.speed import Basis, Known, speed_of
from nightshift.profiles import WORK_SECONDS_MIN, Profile, Provisioning, Span, WorkerShape, fit, misfits
from nightshift.profiles.hardware import Gpu, Tpu
from nightshift.spec.profile_names import known

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

WAYS: Final = 3
_STEP_S: Final = 900


Change = Literal["deadline", "chunk_rows", "no workers", "workers", "room", "shape", "rows"]
"""What a way changes, whatever its words are: of several ways that change the same, one is shown."""
Candidate = tuple[Change, str, SizingRequest]
"""A way that is not checked yet: what it changes, that as a sentence, and the question with that change."""


@dataclass(frozen=True)
class Suggestion:
    """words: what to change, as a sentence. question, answer: with that change; the answer fits. cost: None without a price.
    hours: of accelerators, start-up included. currency: of the cost."""

    change: Change
    words: str
    question: SizingRequest
    answer: Sizing
    hours: float
    cost: float | None
    currency: str = ""

    @property
    def whole(self) -> bool:
        """Whether the same rows are computed."""
        return self.change != "rows"

    @property
    def sentence(self) -> str:
        price = "no price" if self.cost is None else f"{self.cost:,.2f} {self.currency}".rstrip()
        shape, workers = self.question.shape, self.answer.workers
        whole = f" on {n(shape.machines_of(workers), 'whole machine')}" if shape.shares else ""
        done = f"{n(workers, 'worker')}{whole}, done in {minutes(self.answer.finish_s or 0)}"
        return f"{self.words}: {done}, {self.hours:,.1f} accelerator hours, {price}"


def suggestions_for(
    question: SizingRequest, spec: JobSpec, known: Known, prices: Prices | None = None, currency: str = ""
) -> tuple[Suggestion, ...]:
    """The cheapest three, by cost; after them what has no price, by accelerator hours. Fewer rows come last: that is less work
    done.

    One of the three stays with the job's own accelerator, if any such way fits.
    """
    found = []
    for change, words, other in _candidates(question, spec, known):
        reply = answer(other)
        hours = accelerator_hours(other, reply)
        if reply.fits and hours is not None:
            found.append(Suggestion(change, words, other, reply, hours, cost(other, reply, prices or {}), currency))
    found.sort(key=lambda way: (not way.whole, way.cost is None, way.hours if way.cost is None else way.cost))
    # One for each change and profile: three sizes of one machine would be one way.
    distinct: dict[tuple[Change, str], Suggestion] = {}
    for way in found:
        distinct.setdefault((way.change, way.question.shape.profile.name), way)
    cheapest = list(distinct.values())
    ways, own = cheapest[:WAYS], question.shape.profile.hardware
    if not any(way.question.shape.profile.hardware is own for way in ways):
        # Another accelerator may be out of reach, so one way stays with the job's own, if there is one.
        ways[WAYS - 1 :] = [way for way in cheapest[WAYS:] if way.question.shape.profile.hardware is own][:1] or ways[
            WAYS - 1 :
        ]
    return tuple(ways)


def _candidates(question: SizingRequest, spec: JobSpec, known: Known) -> Iterator[Candidate]:
    if question.speed.basis is not Basis.UNKNOWN:
        yield from _same_worker(question)
        if question.chunk_rows is not None:
            yield "chunk_rows", "leave out chunk_rows", replace(question, chunk_rows=None)
        if question.workers is not None:
            yield "no workers", "leave out compute.workers", replace(question, workers=None)
            if question.needed is not None:
                other = replace(question, workers=question.needed)
                yield "workers", f"compute.workers: {question.needed}", other
        elif question.room < question.useful and question.needed is not None:
            yield from _more_room(question, question.needed)
    for shape in shapes(question.shape.profile):
        try:
            speed = speed_of(spec, shape, known)
        except CannotStart:
            continue
        if speed.basis is not Basis.UNKNOWN and shape != question.shape:
            limits = question.limits.of(shape.profile.name)
            if not limits.quotas and shape.profile.hardware is not question.shape.profile.hardware:
                # What the user stated is of the job's own accelerator; nothing is known of another's.
                limits = replace(limits, quota=None)
            other = replace(question, shape=shape, speed=speed, workers=None, limits=limits)
            yield "shape", f"compute: {{{_named(shape)}}}", other
    if question.speed.rows_per_second > 0 and question.usable_s > 0:
        most = question.workers or min(question.room, question.useful)
        rows = math.floor(question.speed.rows_per_second * question.usable_s * max(1, most))
        if 0 < rows < question.rows:
            yield "rows", f"at most {n(rows, 'row')}", replace(question, rows=rows)


def _same_worker(question: SizingRequest) -> Iterator[Candidate]:
    """A longer deadline: for as many workers as there may be, and for a quarter of them."""
    speed, most = question.speed, question.workers or max(1, min(question.useful, question.room))
    for workers in sorted({most, max(1, most // 4)}) if question.workers is None else (most,):
        work_s = question.share(workers) / speed.rows_per_second
        least = speed.start_up_s + max(WORK_SECONDS_MIN, speed.elapsed(work_s) / speed.margin)
        deadline_s = math.ceil(least / _STEP_S) * _STEP_S
        if question.deadline_s < deadline_s <= DURATION_SECONDS_MAX:
            longer = replace(question, deadline_s=deadline_s)
            yield "deadline", f"deadline: {_duration(deadline_s)}", longer


def _more_room(question: SizingRequest, needed: int) -> Iterator[Candidate]:
    limits = question.limits
    quota = None if limits.quota is None else max(limits.quota, needed * question.units)
    most = max(limits.workers_max, needed) if limits.workers_max else 0
    changed = []
    if most != limits.workers_max:
        changed.append(f"NIGHTSHIFT_WORKERS_MAX={most}")
    if quota != limits.quota:
        changed.append(f"a quota of {quota:,}")
    if changed:
        roomier = replace(question, limits=replace(limits, workers_max=most, quota=quota))
        yield "room", " and ".join(changed), roomier


def shapes(profile: Profile) -> Iterator[WorkerShape]:
    """Every worker of one host that can be bought in the same way. A reservation is of one kind of machine: the job's own."""
    reserved = profile.provisioning is Provisioning.RESERVATION
    for other in known().values():
        if other.provisioning is not profile.provisioning or (reserved and other is not profile):
            continue
        spans = [Span()]
        if isinstance(other.hardware, Gpu):
            spans = [Span(tensor_parallel=count) for count in (1, 2, 4, 8)]
        elif isinstance(other.hardware, Tpu):
            spans = [Span(topology=name) for name, each in other.hardware.slices.items() if each.hosts == 1]
        yield from (fit(other, span) for span in spans if not list(misfits(other, span)))


def _named(shape: WorkerShape) -> str:
    if shape.topology:
        return f"profile: {shape.profile.name}, topology: {shape.topology}"
    tensor = f", tensor_parallel: {shape.tensor_parallel}" if shape.tensor_parallel > 1 else ""
    return f"profile: {shape.profile.name}{tensor}"


def _duration(seconds: int) -> str:
    """As a job file has it."""
    hours, rest = divmod(seconds, 3600)
    return (f"{hours}h" if hours else "") + (f"{rest // 60}m" if rest else "")
