"""A run's status as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from nightshift.fields.text import n
from nightshift.planner.costs.bill import Bill, units
from nightshift.planner.costs.prices import no_price
from nightshift.run.observed.pod_startup import ENGINE_PARTS, in_order
from nightshift.run.observed.pods_now import in_time

if TYPE_CHECKING:
    from nightshift.status.overview import Overview

BAR: Final = 40
SHOWN_ATTEMPTS: Final = 8
_WORDS: Final = {
    "useful": "useful work",
    "start_up": "start-up",
    "idle": "idle",
    "twice": "computed twice",
    "lost": "lost to kills",
}
"""What people call the parts of `nightshift.planner.costs.split`."""


def text(look: Overview) -> str:
    """Lines for a terminal, without a newline at the end."""
    found = look.summary
    what = " by ".join(part for part in (found.task, found.model) if part)
    lines = [f"{found.run.prefix}  {what}".rstrip()]
    if look.chunks is not None:
        lines += _progress(look)
    elif found.run.plan_path in found.problems:
        lines.append("unknown: the plan cannot be read")
    else:
        lines.append("not planned yet: plan.json does not exist")
    if found.paused is not None:
        lines.append(f"paused    by {found.paused.by} at {found.paused.at}; nightshift resume {look.url}")
    lines += [f"problem   {path}: {problem}" for path, problem in sorted(found.problems.items())]
    return "\n".join(lines)


def _progress(look: Overview) -> list[str]:
    found = look.summary
    total, done, dead = found.rows or 0, found.done or 0, found.dead_letters or 0
    share = done / total if total else 1.0
    full = int(BAR * share)
    # Rounded down: 100% means that no row is left.
    percent = int(1000 * share) / 10
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in look.dead_reasons.items())
    part = f"; {look.counted}" if reasons and look.reasons_of < dead else ""
    unused = "" if look.rows_unused is None else f", {look.rows_unused:,} in partials that no chunk used"
    return [
        f"[{'#' * full}{'.' * (BAR - full)}] {percent:.1f}%  {done:,} of {n(total, 'row')}",
        f"rows      {n(done - dead, 'prediction')}, {n(dead, 'dead letter')}" + (f" ({reasons}{part})" if reasons else ""),
        f"chunks    {look.committed:,} of {look.chunks or 0:,} committed, {(look.chunks or 0) - look.committed:,} left",
        f"rate      {_rate(look)}",
        *([f"waits     {look.waits}"] if look.waits else []),
        f"tokens    {look.tokens[0]:,} in, {look.tokens[1]:,} out",
        f"waste     {n(look.rows_lost, 'row')} computed twice{unused}",
        *_workers(look),
        f"sealed    {'no' if look.sealed_at is None else in_time(look.sealed_at)}",
        *_measured(look.manifest.measured if look.manifest else None),
        *cost_lines(look.bill if look.manifest else None),
    ]


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


def _rate(look: Overview) -> str:
    found = look.summary
    if look.state in ("complete", "sealed"):
        return f"done in {duration(look.elapsed_s or 0)}, {look.mean:,.1f} rows/s" if look.mean else "done"
    last = found.progress.newest if found.progress else None
    since = "" if last is None else f"; last commit {duration(look.at - last)} ago"
    if found.paused is not None or found.state == "failed":
        return f"{'paused' if found.paused else 'stopped'}{since}"
    rate = "unknown" if found.rate is None else f"{found.rate:,.1f} rows/s"
    left = "unknown" if found.seconds_left is None else f"about {duration(found.seconds_left)}"
    return f"{rate}, time left {left}{since}"


def _workers(look: Overview) -> list[str]:
    seen = len(look.workers) + look.not_looked_at
    lines = [f"workers   {look.workers_planned:,} planned, {n(seen, 'attempt')} seen, {look.running:,} running"]
    for each in look.workers[:SHOWN_ATTEMPTS]:
        lost = f", {each.beat.rows_lost:,} lost" if each.beat.rows_lost else ""
        stage = each.stage.replace("_", "-")
        lines.append(
            f"          {each.attempt} on {each.beat.node}: {stage}, {n(each.rows, 'row')}{lost}, {duration(each.seen_s)} ago"
        )
    if seen > SHOWN_ATTEMPTS:
        lines.append(f"          and {seen - SHOWN_ATTEMPTS:,} more")
    return lines


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
