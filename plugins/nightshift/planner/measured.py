"""What a run measured: its attempts' heartbeats (`nightshift.run.observed.heartbeats`) added up by compute profile, for its
manifest.

A heartbeat is what an attempt claims. What it computed is at least what the ledger has of it, and nothing that is proven
depends on it. So a heartbeat that is missing or cannot be read is counted, and stops nothing.
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
from nightshift.planner.costs.split import Life, Parts, split
from nightshift.run.chunks import Part
from nightshift.run.names import RunRef
from nightshift.run.observed.heartbeats import Ended, Heartbeat, NotAHeartbeat
from nightshift.run.observed.pod_startup import ENGINE_PARTS, STAGES, Starts, read_starts
from nightshift.store import Objects, ObjectTooLarge, StoreUnavailable

log = logging.getLogger(__name__)

READERS: Final = 16
PATIENCE_S: Final = 300.0
"""How long a seal may read heartbeats. What was not read by then is not seen."""

BYTES_MOST: Final = 4 << 20
"""Of a heartbeat, or of what a cluster saw of a JobSet's pods."""
ATTEMPTS_MOST: Final = 200_000
"""Attempts whose heartbeats are read."""

UNKNOWN_MACHINE: Final = Machine("", 0.0)
"""Of a profile that the job does not have, or that the attempt does not know."""


@dataclass(frozen=True)
class Seen:
    """What attempts and clusters report of a run.

    beats: the newest heartbeat of each attempt, if it can be read. attempts: all that left any. starts: of its pods, from the
    clusters that ran them. written: heartbeats of all attempts.
    """

    beats: tuple[Heartbeat, ...] = ()
    attempts: frozenset[str] = frozenset()
    starts: Starts = field(default_factory=Starts)
    written: int = 0


async def look(objects: Objects, run: RunRef, plan_uid: str) -> Seen:
    """Reads each attempt's newest heartbeat at the plan of the run. Never raises for what is missing, unreadable or slow."""
    work = run.work(plan_uid)
    newest: dict[str, str] = {}
    beats: list[Heartbeat] = []
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
            await asyncio.gather(*(_read(objects, waiting, beats) for _ in range(READERS)))
            starts = await read_starts(objects, run)
    except (StoreUnavailable, TimeoutError) as error:
        log.warning("not all heartbeats were read", extra={"fields": {"error": f"{type(error).__name__}: {error}"}})
    return Seen(tuple(sorted(beats, key=lambda beat: beat.attempt)), frozenset(newest), starts, written)


async def _read(objects: Objects, waiting: Iterable[tuple[str, str]], beats: list[Heartbeat]) -> None:
    for attempt, path in waiting:
        try:
            beat = Heartbeat.from_bytes(await objects.read(path) or b"")
            if beat.attempt != attempt:
                raise NotAHeartbeat(f"it is one of {beat.attempt}")
        except (NotAHeartbeat, ObjectTooLarge, StoreUnavailable) as error:
            log.warning("heartbeat not read", extra={"fields": {"path": path, "error": str(error)}})
        else:
            beats.append(beat)


def measure(seen: Seen, parts: Sequence[Part], machine: Callable[[str], Machine] = lambda _: UNKNOWN_MACHINE) -> dict[str, Any]:
    """The manifest's entry. parts: of all chunks. machine: of a worker of a profile.

    attempts: those that left a trace, in heartbeats or in the ledger. not_seen: those of them without one that can be read.
    marks: heartbeats that were written.
    profiles: an entry for each (`_of_profile`), in order of their names; "" for attempts that do not know theirs.
    """
    used: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        used[part.attempt].append(part)
    attempts = seen.attempts | used.keys()
    by_profile: dict[str, list[Heartbeat]] = defaultdict(list)
    for beat in seen.beats:
        by_profile[beat.profile].append(beat)
    return {
        "attempts": len(attempts),
        "not_seen": len(attempts) - len(seen.beats),
        "marks": seen.written,
        "profiles": [
            {"profile": profile, **_of_profile(beats, used, seen.starts), **_paid(beats, used, seen.starts, machine(profile))}
            for profile, beats in sorted(by_profile.items())
        ],
    }


def _of_profile(beats: Sequence[Heartbeat], used: Mapping[str, Sequence[Part]], starts: Starts) -> dict[str, Any]:
    """workers: that computed any row. ended: attempts by how they ended; `killed` are those without a last one. preempted:
    those whose machine their cluster took away.

    rows: computed. rows_answered: of these, by the engine; the others are dead letters. rows_unused: of all, not in the ledger;
    rows_lost: of these, because another attempt committed first.
    alive_s, work_s, engine_wait_s: of all attempts added up. before_s: with a machine and without a driver, as far as clusters
    saw it. cpus: the median of its attempts. start_up_s, start_up_most_s: the median and the longest of each stage that was
    observed. engine_start_s: the median of each part of an engine's start that a log has.
    """
    ended = Counter(str(beat.ended or "killed") for beat in beats)
    in_ledger = {beat.attempt: sum(part.rows for part in used.get(beat.attempt, ())) for beat in beats}
    # Between its last heartbeat and its end, a killed attempt may have committed more than it claims.
    rows = {beat.attempt: max(beat.rows_answered + beat.rows_dead, in_ledger[beat.attempt]) for beat in beats}
    stages = [starts.stages(beat) for beat in beats]
    return {
        "workers": len({(beat.role, beat.pod if beat.index is None else beat.index) for beat in beats if rows[beat.attempt]}),
        "attempts": len(beats),
        "ended": dict(sorted(ended.items())),
        "preempted": sum(map(starts.preempted, beats)),
        "rows": sum(rows.values()),
        "rows_answered": sum(max(beat.rows_answered, in_ledger[beat.attempt] - beat.rows_dead) for beat in beats),
        "rows_unused": sum(rows.values()) - sum(in_ledger.values()),
        "rows_lost": sum(beat.rows_lost for beat in beats),
        "input_tokens": sum(max(beat.input_tokens, sum(p.prompt_tokens for p in used.get(beat.attempt, ()))) for beat in beats),
        "output_tokens": sum(
            max(beat.output_tokens, sum(p.output_tokens for p in used.get(beat.attempt, ()))) for beat in beats
        ),
        "alive_s": round(sum(beat.age_s + starts.tail_s(beat) for beat in beats), 3),
        "before_s": round(sum(starts.before_s(beat) or 0.0 for beat in beats), 3),
        "work_s": round(sum(beat.work_s for beat in beats), 3),
        "engine_wait_s": round(sum(beat.engine_wait_s for beat in beats), 3),
        "cpus": statistics.median(beat.cpus for beat in beats),
        "start_up_s": _each(STAGES, stages, statistics.median),
        "start_up_most_s": _each(STAGES, stages, max),
        "engine_start_s": _each(ENGINE_PARTS, [starts.engine(beat) for beat in beats], statistics.median),
    }


def _each(
    names: Sequence[str], found: Sequence[Mapping[str, float]], one: Callable[[Sequence[float]], float]
) -> dict[str, float]:
    """By name, one number of all; a name that nobody has is missing."""
    known = {name: [each[name] for each in found if name in each] for name in names}
    return {name: round(one(seconds), 3) for name, seconds in known.items() if seconds}


def _paid(beats: Sequence[Heartbeat], used: Mapping[str, Sequence[Part]], starts: Starts, machine: Machine) -> dict[str, Any]:
    """machine, machines: the name and the number of a worker's. machine_s: `nightshift.planner.costs.split.Parts` of all
    attempts, in seconds. starts_assumed: attempts whose start no cluster saw: if it saw others', these took the median of
    them."""
    before = [starts.before_s(beat) for beat in beats]
    known = [seconds for seconds in before if seconds is not None]
    usual = statistics.median(known) if known else 0.0
    lives = []
    for beat, seconds in zip(beats, before, strict=True):
        in_ledger = sum(part.rows for part in used.get(beat.attempt, ()))
        lives.append(
            Life(
                before_s=usual if seconds is None else seconds,
                age_s=beat.age_s,
                tail_s=starts.tail_s(beat),
                start_up_s=beat.start_up_s.get("weights"),
                work_s=beat.work_s,
                engine_wait_s=beat.engine_wait_s,
                rows=beat.rows_answered + beat.rows_dead,
                rows_used=in_ledger,
                rows_lost=beat.rows_lost,
                well=beat.ended is Ended.DONE,
            )
        )
    return {
        "machine": machine.name,
        "machines": machine.count,
        "machine_s": sum(map(split, lives), Parts()).to_json(),
        "starts_assumed": len(beats) - len(known),
    }
