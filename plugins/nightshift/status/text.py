"""A run's status as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from nightshift.fields.text import n
from nightshift.planner.costs.bill import Bill, units
from nightshift.planner.costs.prices import no_price
from nightshift.run.observed.pod_startup import ENGINE_PARTS, in_order
from nightshift.status.rate import WINDOW_S
from nightshift.status.report import Status, iso

BAR: Final = 40
SHOWN_ATTEMPTS: Final = 8
SHOWN_PROBLEMS: Final = 5
_WORDS: Final = {
    "useful": "useful work",
    "start_up": "start-up",
    "idle": "idle",
    "twice": "computed twice",
    "lost": "lost to kills",
}
"""What people call the parts of `nightshift.planner.costs.split`."""


def text(status: Status) -> str:
    """Lines for a terminal, without a newline at the end."""
    what = " by ".join(part for part in (status.task, status.model) if part)
    lines = [f"{status.run.prefix}  {what}".rstrip()]
    if status.planned:
        lines += _progress(status)
    elif status.run.plan_path in status.problems:
        lines.append("unknown: the plan cannot be read")
    else:
        lines.append("not planned yet: plan.json does not exist")
    if status.paused is not None:
        lines.append(f"paused    by {status.paused['by']} at {status.paused['at']}; nightshift resume {status.url}")
    lines += [f"problem   {path}: {problem}" for path, problem in sorted(status.problems.items())[:SHOWN_PROBLEMS]]
    if (more := len(status.problems) - SHOWN_PROBLEMS) > 0:
        lines.append(f"          and {more:,} more")
    return "\n".join(lines)


def _progress(status: Status) -> list[str]:
    share = status.rows_done / status.rows_total if status.rows_total else 1.0
    full = int(BAR * share)
    # Rounded down: 100% means that no row is left.
    percent = int(1000 * share) / 10
    lines = [
        f"[{'#' * full}{'.' * (BAR - full)}] {percent:.1f}%  {status.rows_done:,} of {n(status.rows_total, 'row')}",
        f"rows      {n(status.rows_done - status.dead_letters, 'prediction')}, {n(status.dead_letters, 'dead letter')}"
        + _listed(status.dead_reasons),
    ]
    if status.rows_saved or status.partials_bad:
        bad = f", {n(status.partials_bad, 'partial')} not readable" if status.partials_bad else ""
        lines.append(f"saved     {n(status.rows_saved, 'row')} of open chunks in partials{bad}")
    lines.append(
        f"chunks    {status.chunks_committed:,} of {status.chunks_total:,} committed, {status.chunks_left:,} left"
        + _apart(status)
    )
    lines.append(f"rate      {_rate(status)}")
    lines.append(f"tokens    {status.prompt_tokens:,} in, {status.output_tokens:,} out")
    share_lost = "" if status.waste_percent is None else f" ({status.waste_percent:.2f}% of those done)"
    lines.append(
        f"waste     {n(status.waste_rows, 'row')}{share_lost}: {status.waste_lost_rows:,} computed twice, "
        f"{status.waste_partial_rows:,} in partials that no chunk used"
    )
    lines += _workers(status)
    when = "no" if status.sealed_at is None else iso(status.sealed_at)
    return [*lines, f"sealed    {when}", *_measured(status.measured), *cost_lines(status.bill)]


def _measured(found: Mapping[str, Any] | None) -> list[str]:
    """Speed and start-up of the workers of each profile."""
    if found is None:
        return []
    lines = []
    for each in found["profiles"]:
        rows, work_s, attempts = each["rows"], each["work_s"], n(each["attempts"], "attempt")
        tokens = (each["input_tokens"] + each["output_tokens"]) / work_s if work_s else 0.0
        speed = f"{rows / work_s:,.1f} rows/s and {tokens:,.0f} tokens/s per worker" if work_s else "nothing computed"
        stages = _stages(each)
        killed = f", {each['ended']['killed']:,} killed" if "killed" in each["ended"] else ""
        lines.append(f"{each['profile'] or 'unknown profile'}: {n(each['workers'], 'worker')}, {speed}; {attempts}{killed}")
        if stages:
            lines.append(f"  start-up: {stages}")
    if found["not_seen"]:
        lines.append(f"{n(found['not_seen'], 'attempt')} left no heartbeat")
    return [f"{'' if number else 'measured':<10}{line}" for number, line in enumerate(lines)]


def _stages(profile: Mapping[str, Any]) -> str:
    """The median of each stage of a start, the longest if that is longer, and what the engine says of its own."""
    most, engine = profile.get("start_up_most_s", {}), profile.get("engine_start_s", {})  # Earlier releases have neither.
    shown = []
    for name, seconds in in_order(profile["start_up_s"]):
        more = [f"at most {duration(most[name])}"] if most.get(name, 0.0) >= seconds + 1 else []
        if name == "weights" and engine:
            parts = ", ".join(f"{part.replace('_', '-')} {duration(engine[part])}" for part in ENGINE_PARTS if part in engine)
            more.append(f"the engine says {parts}")
        shown.append(f"{name.replace('_', '-')} {duration(seconds)}" + (f" ({'; '.join(more)})" if more else ""))
    return ", ".join(shown)


def _apart(status: Status) -> str:
    parts = []
    if status.chunks_bad:
        parts.append(f"{status.chunks_bad:,} that cannot be counted ({n(status.rows_bad, 'row')})")
    if status.foreign_objects:
        parts.append(f"{n(status.foreign_objects, 'foreign object')}")
    if status.unanswered:
        parts.append(f"{n(status.unanswered, 'object')} not read: the store did not answer")
    return "".join(f", {part}" for part in parts)


def _rate(status: Status) -> str:
    if status.complete:
        if not status.elapsed_s:
            return "done"
        return f"done in {duration(status.elapsed_s)}, {status.rows_done / status.elapsed_s:,.1f} rows/s"
    since = "" if status.last_commit is None else f"; last commit {duration(status.observed_at - status.last_commit)} ago"
    if status.paused is not None:
        return f"paused{since}"
    if status.rate is None:
        return f"unknown{since}"
    left = "unknown" if status.seconds_left is None else f"about {duration(status.seconds_left)}"
    return f"{status.rate:,.1f} rows/s, time left {left}{since}"


def _workers(status: Status) -> list[str]:
    live = sum(status.observed_at - attempt.last_seen <= WINDOW_S for attempt in status.attempts)
    seen = f"{n(len(status.attempts), 'attempt')} seen, {live:,} in the last {WINDOW_S / 60:.0f} min"
    lines = [f"workers   {status.workers_planned:,} planned, {seen}"]
    for attempt in status.attempts[:SHOWN_ATTEMPTS]:
        lost = f", {attempt.lost_rows:,} lost" if attempt.lost_rows else ""
        saved = f", {attempt.partial_rows:,} saved" if attempt.partial_rows else ""
        did = f"{n(attempt.chunks, 'chunk')}, {n(attempt.rows, 'row')}{saved}{lost}"
        ago = duration(status.observed_at - attempt.last_seen)
        lines.append(f"          {attempt.name} on {attempt.node}: {did}, {ago} ago")
    if (more := len(status.attempts) - SHOWN_ATTEMPTS) > 0:
        lines.append(f"          and {more:,} more")
    return lines


def _listed(reasons: dict[str, int]) -> str:
    return f" ({', '.join(f'{count:,} {reason}' for reason, count in reasons.items())})" if reasons else ""


def duration(seconds: float) -> str:
    """The two largest units; never negative, even if this clock is behind."""
    whole = max(0, round(seconds))
    days, hours, minutes = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def cost_lines(found: Bill | None) -> list[str]:
    """Lines for a terminal. Without BigQuery, which is not asked."""
    if found is None:
        return []
    shown = list(_costs(found))
    return [f"{'' if number else 'cost':<10}{line}" for number, line in enumerate(shown)]


def _costs(found: Bill) -> Iterator[str]:
    said, currency = found.to_json(), found.prices.currency
    if found.total is None:
        yield f"unknown: {no_price(found.unpriced, found.prices.name)}"
    else:
        each = [
            f"{said[key]:,.4f} {words}"
            for key, words in (("per_million_tokens", "per million tokens"), ("per_thousand_rows", "per thousand rows"))
            if said[key] is not None
        ]
        before = "" if found.estimate is None else f"; machines {_amount(found.machines)}, estimated {_amount(found.estimate)}"
        rates = f": {', '.join(each)}" if each else ""
        yield f"{_amount(found.total)} {currency} without BigQuery{rates}{before}"
    for rung in found.rungs:
        actual, estimated = rung.cost(rung.parts), rung.cost(rung.estimate)
        for name, parts, costs in (("", rung.parts, actual), (", estimated", rung.estimate, estimated)):
            if parts is not None:
                seconds = parts.to_json()
                shares = [
                    f"{words} {_each(seconds, costs, part)}"
                    for part, words in _WORDS.items()
                    if part == "useful" or seconds[part]
                ]
                yield f"{rung.profile or 'unknown profile'}{name}: {_each(seconds, costs, 'paid')} = {' + '.join(shares)}"
    if found.not_seen:
        yield f"without {n(found.not_seen, 'attempt')} that left no heartbeat"


def _each(seconds: Mapping[str, float], costs: Mapping[str, int] | None, part: str) -> str:
    hours = f"{seconds[part] / 3600:,.2f} h"
    return hours if costs is None else f"{_amount(costs[part])} ({hours})"


def _amount(millionths: int | None) -> str:
    value = units(millionths) or 0.0
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:,.6f}".rstrip("0")
