"""What a run measured: the marks of its attempts (`nightshift.run.heartbeats`) added up by compute profile, for its manifest.

A mark is what an attempt claims. What it computed is at least what the ledger has of it, and nothing that is proven depends on
it. So a mark that is missing or cannot be read is counted, and stops nothing.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nightshift.planner.costs.bill import Machine
from nightshift.planner.costs.split import Life, split_all
from nightshift.run.chunks import Part
from nightshift.run.heartbeats import Ended, Heartbeat, NotAHeartbeat
from nightshift.run.names import RunRef
from nightshift.run.pod_startup import STAGES, Starts, read_starts
from nightshift.store import Objects, ObjectTooLarge, StoreUnavailable

log = logging.getLogger(__name__)

READERS: Final = 16
PATIENCE_S: Final = 300.0
"""How long a seal may read marks. What was not read by then is not seen."""

BYTES_MOST: Final = 4 << 20
"""Of a mark, or of what a cluster saw of a JobSet's pods."""
ATTEMPTS_MOST: Final = 200_000
"""Attempts whose marks are read."""

UNKNOWN_MACHINE: Final = Machine("", 0.0)
"""Of a profile that the job does not have, or that nobody told the attempt."""


@dataclass(frozen=True)
class Seen:
    """What attempts and clusters say of a run.

    marks: the newest of each attempt, if it can be read. attempts: all that left any. starts: of its pods, from the clusters
    that ran them. written: marks of all attempts.
    """

    marks: tuple[Heartbeat, ...] = ()
    attempts: frozenset[str] = frozenset()
    starts: Starts = field(default_factory=Starts)
    written: int = 0


async def look(objects: Objects, run: RunRef, plan_uid: str) -> Seen:
    """Reads the newest mark of each attempt at the plan of the run. Never raises for what is missing, unreadable or slow."""
    work = run.work(plan_uid)
    newest: dict[str, str] = {}
    marks: list[Heartbeat] = []
    starts = Starts()
    written = 0
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for path in objects.list(work.attempts_folder):
                found = work.parse_mark(path)
                if found and (found[0] in newest or len(newest) < ATTEMPTS_MOST):
                    newest[found[0]] = path  # A listing is in order.
                    written += 1
            waiting = iter(newest.items())
            await asyncio.gather(*(_read(objects, waiting, marks) for _ in range(READERS)))
            starts = await read_starts(objects, run)
    except (StoreUnavailable, TimeoutError) as error:
        log.warning("not all marks were read", extra={"fields": {"error": f"{type(error).__name__}: {error}"}})
    return Seen(tuple(sorted(marks, key=lambda mark: mark.attempt)), frozenset(newest), starts, written)


async def _read(objects: Objects, waiting: Iterable[tuple[str, str]], marks: list[Heartbeat]) -> None:
    for attempt, path in waiting:
        try:
            mark = Heartbeat.from_bytes(await objects.read(path) or b"")
            if mark.attempt != attempt:
                raise NotAHeartbeat(f"it is one of {mark.attempt}")
        except (NotAHeartbeat, ObjectTooLarge, StoreUnavailable) as error:
            log.warning("mark not read", extra={"fields": {"mark": path, "error": str(error)}})
        else:
            marks.append(mark)


def measure(seen: Seen, parts: Sequence[Part], machine: Callable[[str], Machine] = lambda _: UNKNOWN_MACHINE) -> dict[str, Any]:
    """The manifest's entry. parts: of all chunks. machine: of a worker of a profile.

    attempts: those that left a trace, in marks or in the ledger. not_seen: those of them without a mark that can be read.
    marks: how many were written.
    profiles: an entry for each (`_of_profile`), in order of their names; "" for attempts that were not told theirs.
    """
    used: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        used[part.attempt].append(part)
    attempts = seen.attempts | used.keys()
    by_profile: dict[str, list[Heartbeat]] = defaultdict(list)
    for mark in seen.marks:
        by_profile[mark.profile].append(mark)
    return {
        "attempts": len(attempts),
        "not_seen": len(attempts) - len(seen.marks),
        "marks": seen.written,
        "profiles": [
            {"profile": profile, **_of_profile(marks, used, seen.starts), **_paid(marks, used, seen.starts, machine(profile))}
            for profile, marks in sorted(by_profile.items())
        ],
    }


def _of_profile(marks: Sequence[Heartbeat], used: Mapping[str, Sequence[Part]], starts: Starts) -> dict[str, Any]:
    """workers: that computed any row. ended: attempts by how they ended; `killed` are those without a last mark. preempted:
    those whose machine their cluster took away.

    rows: computed. rows_answered: of these, by the engine; the others are dead letters. rows_unused: of all, not in the ledger;
    rows_lost: of these, because another attempt committed first.
    alive_s, work_s, engine_wait_s: of all attempts added up. before_s: with a machine and without a driver, as far as clusters
    saw it. cpus: the median of its attempts. start_up_s: the median of each stage that anybody saw.
    """
    ended = Counter(str(mark.ended or "killed") for mark in marks)
    in_ledger = {mark.attempt: sum(part.rows for part in used.get(mark.attempt, ())) for mark in marks}
    # Between its last mark and its end, a killed attempt may have committed more than it claims.
    rows = {mark.attempt: max(mark.rows_answered + mark.rows_dead, in_ledger[mark.attempt]) for mark in marks}
    stages = [starts.stages(mark) for mark in marks]
    return {
        "workers": len({(mark.role, mark.pod if mark.index is None else mark.index) for mark in marks if rows[mark.attempt]}),
        "attempts": len(marks),
        "ended": dict(sorted(ended.items())),
        "preempted": sum(map(starts.preempted, marks)),
        "rows": sum(rows.values()),
        "rows_answered": sum(max(mark.rows_answered, in_ledger[mark.attempt] - mark.rows_dead) for mark in marks),
        "rows_unused": sum(rows.values()) - sum(in_ledger.values()),
        "rows_lost": sum(mark.rows_lost for mark in marks),
        "input_tokens": sum(max(mark.input_tokens, sum(p.prompt_tokens for p in used.get(mark.attempt, ()))) for mark in marks),
        "output_tokens": sum(
            max(mark.output_tokens, sum(p.output_tokens for p in used.get(mark.attempt, ()))) for mark in marks
        ),
        "alive_s": round(sum(mark.age_s + starts.tail_s(mark) for mark in marks), 3),
        "before_s": round(sum(starts.before_s(mark) or 0.0 for mark in marks), 3),
        "work_s": round(sum(mark.work_s for mark in marks), 3),
        "engine_wait_s": round(sum(mark.engine_wait_s for mark in marks), 3),
        "cpus": statistics.median(mark.cpus for mark in marks),
        "start_up_s": {
            stage: round(statistics.median(found), 3)
            for stage in STAGES
            if (found := [each[stage] for each in stages if stage in each])
        },
    }


def _paid(marks: Sequence[Heartbeat], used: Mapping[str, Sequence[Part]], starts: Starts, machine: Machine) -> dict[str, Any]:
    """machine, machines: the name and the number of a worker's. machine_s: `nightshift.planner.costs.split.Parts` of all
    attempts, in seconds. starts_assumed: attempts whose start no cluster saw: if it saw others', these took the median of
    them."""
    before = [starts.before_s(mark) for mark in marks]
    known = [seconds for seconds in before if seconds is not None]
    usual = statistics.median(known) if known else 0.0
    lives = []
    for mark, seconds in zip(marks, before, strict=True):
        in_ledger = sum(part.rows for part in used.get(mark.attempt, ()))
        lives.append(
            Life(
                before_s=usual if seconds is None else seconds,
                age_s=mark.age_s,
                tail_s=starts.tail_s(mark),
                start_up_s=mark.start_up_s.get("weights"),
                work_s=mark.work_s,
                engine_wait_s=mark.engine_wait_s,
                rows=mark.rows_answered + mark.rows_dead,
                rows_used=in_ledger,
                rows_lost=mark.rows_lost,
                well=mark.ended is Ended.DONE,
            )
        )
    return {
        "machine": machine.name,
        "machines": machine.count,
        "machine_s": split_all(lives).to_json(),
        "starts_assumed": len(marks) - len(known),
    }
