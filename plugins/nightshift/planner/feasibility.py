"""How many workers a run needs, and whether it can end within its deadline. Pure arithmetic; `nightshift.planner.plan` asks it.

Bounds. A worker has at least ``max_num_seqs`` rows: with fewer, its engine is partly idle. It has done them before the deadline
(``activeDeadlineSeconds`` of the JobSet), its start-up and a margin taken off. No more workers than the queue's quota and the
deployment's limit allow. The working time is that of the worker with the most rows, in whole chunks if the job states how large
these are; so more rows never need fewer workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nightshift.fields.text import minutes, n
from nightshift.planner.speed import Basis, Speed
from nightshift.profiles import WORK_SECONDS_MIN, WorkerShape
from nightshift.profiles.limits import Limits
from nightshift.spec.limits import WORKERS_MAX

Prices = Mapping[str, float]
"""Of one machine for an hour, by `nightshift.profiles.worker.WorkerShape.price_name`."""


@dataclass(frozen=True)
class SizingRequest:
    """seqs: ``max_num_seqs``, of one engine. deadline_s: in all. workers, chunk_rows: as the job states; None to have them
    planned. request_rows: that share a request; a planned chunk has whole requests."""

    rows: int
    seqs: int
    deadline_s: float
    shape: WorkerShape
    speed: Speed
    workers: int | None = None
    limits: Limits = Limits()
    chunk_rows: int | None = None
    request_rows: int = 1

    @property
    def usable_s(self) -> float:
        """Seconds that a worker may be given work for: 0 if the deadline leaves less than `WORK_SECONDS_MIN` after start-up."""
        left = self.deadline_s - self.speed.start_up_s
        return self.speed.working(left) * self.speed.margin if left >= WORK_SECONDS_MIN else 0.0

    @property
    def units(self) -> int:
        """Of one worker, as quota and cost count them."""
        return self.shape.accelerators_in_all or 1

    @property
    def useful(self) -> int:
        """More workers would have less than a full batch each, or no chunk."""
        return max(1, min(self.rows // (self.seqs * self.shape.engines), self.chunks))

    @property
    def chunks(self) -> int:
        """The most that there can be."""
        return max(1, -(-self.rows // self.portion))

    @property
    def portion(self) -> int:
        """Rows that stay together: a worker computes them one portion after the other, and another cannot take half of one."""
        return self.chunk_rows or self.request_rows

    @property
    def room(self) -> int:
        """The most workers that may run; 0 if the quota is less than one."""
        most = self.limits.workers_max if self.limits.workers_max and self.workers is None else WORKERS_MAX
        return most if self.limits.quota is None else min(most, self.limits.quota // self.units)

    @property
    def needed(self) -> int | None:
        """So that the deadline is kept; None if no number would do, or the speed is unknown."""
        a_worker = self.speed.rows_per_second * self.usable_s
        if self.rows <= a_worker:
            return 1
        portions = math.floor(a_worker / self.portion)
        return -(-self.chunks // portions) if portions else None

    def share(self, workers: int) -> int:
        """Rows of the worker that has the most of them."""
        return min(self.rows, -(-self.chunks // workers) * self.portion)


@dataclass(frozen=True)
class Sizing:
    """workers: at least 1, as planned or as near as the bounds allow. work_s: of each; None if the speed is unknown. finish_s:
    from the start of the JobSet to the last row. problems: why it cannot be, in words; empty if it fits or is unknown."""

    workers: int
    work_s: float | None
    finish_s: float | None
    problems: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return not self.problems


def answer(question: SizingRequest) -> Sizing:
    """The workers of a question, and everything that is wrong with them."""
    speed, needed = question.speed, question.needed
    if question.workers is not None:
        workers = min(question.workers, question.chunks)
    elif speed.basis is Basis.UNKNOWN:
        workers = 1
    else:
        workers = max(1, min(question.useful if needed is None else min(needed, question.useful), question.room))
    known = speed.basis is not Basis.UNKNOWN
    work_s = question.share(workers) / speed.rows_per_second if known else None
    finish_s = None if work_s is None else speed.start_up_s + speed.elapsed(work_s)
    return Sizing(workers, work_s, finish_s, tuple(_problems(question, workers, work_s)) if question.rows else ())


def _problems(question: SizingRequest, workers: int, work_s: float | None) -> Iterator[str]:
    start_up, left = question.speed.start_up_s, question.deadline_s - question.speed.start_up_s
    quota = question.limits.quota
    if quota is not None and workers * question.units > quota:
        taken = f" with {n(workers * question.units, 'accelerator')}" if question.shape.machine else ""
        yield f"{n(workers, 'worker')}{taken}: the queue's quota is {quota:,}"
    elif workers > question.room:
        yield f"{n(workers, 'worker')} are more than a run may have ({WORKERS_MAX:,})"
    if left < WORK_SECONDS_MIN:
        yield (
            f"a deadline of {minutes(question.deadline_s)} leaves {minutes(max(0.0, left))} after {minutes(start_up)} of "
            f"start-up ({question.speed.start_up_words}); it has to leave {minutes(WORK_SECONDS_MIN)}"
        )
    elif work_s is not None and work_s > question.usable_s:
        yield (
            f"{n(workers, 'worker')} would need {minutes(work_s)}, but the deadline leaves {minutes(question.usable_s)} "
            f"({question.speed.margin:.0%} of what is left after start-up)"
        )
        if question.workers is None:
            yield from _why_no_more(question)


def _why_no_more(question: SizingRequest) -> Iterator[str]:
    """Which bound keeps the workers below what the deadline needs."""
    needed, least = question.needed, min(question.useful, question.room)
    if needed is None:
        together = f"{n(question.portion, 'row')} stay together, and one worker cannot compute them in time"
        yield f"no number of workers would do: {together}"
    elif least < question.useful:
        yield f"the deadline needs {needed:,}, but there is room for {n(question.room, 'worker')}"
    elif needed > question.useful:
        yield (
            f"the deadline needs {needed:,}, but more than {question.useful:,} would have less than a full batch or chunk each "
            f"({batch(question)})"
        )


def batch(question: SizingRequest) -> str:
    """The rows that a worker computes at once, in words."""
    engines = question.shape.engines
    return f"max_num_seqs = {question.seqs:,}" + (f" for each of {engines} engines" if engines > 1 else "")


def accelerator_hours(question: SizingRequest, found: Sizing) -> float | None:
    """Of the whole run, start-up included; worker hours for profiles without an accelerator."""
    return None if found.finish_s is None else found.workers * question.units * found.finish_s / 3600


def cost(question: SizingRequest, found: Sizing, prices: Prices) -> float | None:
    """In the currency of the prices, of whole machines; None if the machine has none there, or the speed is unknown."""
    shape = question.shape
    price = prices.get(shape.price_name)
    if price is None or found.finish_s is None:
        return None
    return shape.machines_of(found.workers) * found.finish_s / 3600 * price


def rate(per_second: float) -> str:
    """Three digits that count."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
