"""What ``nightshift status`` shows of a stream: backlog, rates and latency, and whether the servers can keep up.

Arrivals are what was acknowledged plus what the backlog grew by: Pub/Sub counts publishing for a topic, not for a subscription.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.fields.text import n
from nightshift.settings import Settings
from nightshift.spec import StreamSpec
from nightshift.spec.stream import Messages
from nightshift.stream.status.prometheus import Prometheus
from nightshift.stream.status.queries import BACKLOG, OLDEST, Place, of_cluster, of_project, of_stream, of_subscription

WINDOW_S: Final = 600
NOTICEABLE: Final = 1.05
"""Arrivals are an estimate: more than this multiple of what can be answered is worth a warning."""


@dataclass(frozen=True)
class Numbers:
    """Of now; None for what Prometheus does not have. Rates: messages a second. Times: seconds. dead: in the window."""

    backlog: float | None
    oldest_s: float | None
    arriving: float | None
    answered: float | None
    dead: float | None
    subscribers: int
    p50_s: float | None
    p99_s: float | None


def _subscription(spec: StreamSpec) -> Messages | None:
    """None for a watched folder, of whose backlog Prometheus knows nothing."""
    return spec.source if isinstance(spec.source, Messages) else None


@dataclass(frozen=True)
class Sources:
    """Who is asked. subscription: about Pub/Sub; None for a watched folder. pods: about subscribers."""

    subscription: Prometheus | None
    pods: Prometheus

    @classmethod
    def one(cls, spec: StreamSpec, url: str) -> Sources:
        """A Prometheus that has all of it."""
        prometheus = Prometheus(Place(url))
        return cls(prometheus if _subscription(spec) else None, prometheus)

    @classmethod
    def google(cls, spec: StreamSpec, environment: Mapping[str, str]) -> Sources:
        """Cloud Monitoring, in the subscription's project and in the cluster's. Raises ValueError if nothing says which."""
        other = "or pass --prometheus URL."
        subscription = _subscription(spec)
        project = subscription and (subscription.project or environment.get("NIGHTSHIFT_PROJECT"))
        if subscription and not project:
            raise ValueError(f"source.subscription has no project. Set NIGHTSHIFT_PROJECT, {other}")
        # The settings insist on both, and neither is needed for pods.
        needless = dict.fromkeys(("NIGHTSHIFT_BUCKET", "NIGHTSHIFT_PROJECT"), "none")
        settings = Settings.from_environment({**environment, **needless})
        try:
            pods = of_cluster(settings.runtime, settings.namespace)
        except ValueError as error:
            raise ValueError(f"{error}, {other}") from None
        return cls(Prometheus(of_project(project)) if project else None, Prometheus(pods))


def measure(sources: Sources, spec: StreamSpec, window_s: float) -> Numbers:
    """Asks for every number. Raises NoAnswer."""
    over, pods = f"[{round(window_s)}s]", sources.pods
    backlog = oldest = growth = None
    if (subscription := _subscription(spec)) and (pubsub := sources.subscription):
        waiting, ages = (of_subscription(metric, pubsub.place, subscription.short_name) for metric in (BACKLOG, OLDEST))
        backlog, oldest = pubsub.ask(f"sum({waiting})"), pubsub.ask(f"max({ages})")
        growth = pubsub.ask(f"sum(deriv({waiting}{over}))")

    def ours(metric: str, **labels: str) -> str:
        return of_stream(metric, pods.place, spec.job, **labels)

    acknowledged = pods.ask(f"sum(rate({ours('nightshift_stream_acknowledged_total')}{over}))")
    outcomes = {name: ours("nightshift_stream_messages_total", outcome=name) for name in ("answered", "dead_letter")}
    latency = f"sum by (le) (rate({ours('nightshift_stream_latency_seconds_bucket')}{over}))"
    return Numbers(
        backlog=backlog,
        oldest_s=oldest,
        arriving=None if growth is None or acknowledged is None else max(0.0, growth + acknowledged),
        answered=pods.ask(f"sum(rate({outcomes['answered']}{over}))"),
        dead=pods.ask(f"sum(increase({outcomes['dead_letter']}{over}))"),
        subscribers=int(pods.ask(f"count({ours('nightshift_stream_messages_held')})") or 0),
        p50_s=pods.ask(f"histogram_quantile(0.5, {latency})"),
        p99_s=pods.ask(f"histogram_quantile(0.99, {latency})"),
    )


def warnings(spec: StreamSpec, numbers: Numbers) -> Iterator[str]:
    """What is wrong, and what to do about it."""
    target, most = spec.latency.target_seconds, spec.scaling and spec.scaling.messages_per_second_max
    if most and numbers.arriving is not None and numbers.arriving > NOTICEABLE * most:
        yield (
            f"{_rate(numbers.arriving)} arrive, and scaling.servers.max answers {_rate(most)}: the backlog grows until fewer "
            "arrive. Raise it if the quota of accelerators allows it, or take a smaller model."
        )
    if numbers.p99_s is not None and numbers.p99_s > target:
        yield f"One message in a hundred takes {numbers.p99_s:,.0f} s or more; latency.target is {spec.latency.target}."
    elif numbers.oldest_s is not None and numbers.oldest_s > target:
        yield f"A message has waited for {numbers.oldest_s:,.0f} s; latency.target is {spec.latency.target}."
    if not numbers.subscribers:
        yield f"Prometheus knows no subscriber of this stream: none runs, or none is scraped with nightshift_job={spec.job}."
    if numbers.backlog is None and (source := _subscription(spec)):
        yield f"Prometheus knows no subscription {source.subscription}: its name may be wrong, or it is new."


def text(spec: StreamSpec, numbers: Numbers, window_s: float) -> str:
    """Lines for a terminal, without a newline at the end."""
    scaling = spec.scaling
    most = f"; {scaling.subscribers_max:,} can answer {_rate(scaling.messages_per_second_max)}" if scaling else ""
    who = f"{n(numbers.subscribers, 'subscriber')}"
    oldest = f", the oldest {numbers.oldest_s:,.0f} s old" if numbers.backlog and numbers.oldest_s is not None else ""
    lines = [
        f"{spec.job}  {spec.task} by {spec.model.name} {spec.summary}",
        f"backlog     {_messages(numbers.backlog)}{oldest}",
        f"arriving    {_rate(numbers.arriving)}, over the last {window_s:,.0f} s",
        f"answered    {_rate(numbers.answered)} by {who}{most}",
        f"latency     p50 {_number(numbers.p50_s, '.2f')} s, p99 {_number(numbers.p99_s, '.2f')} s",
        f"dead        {_messages(numbers.dead)}",
    ]
    return "\n".join([*lines, *(f"WARNING     {warning}" for warning in warnings(spec, numbers))])


def to_json(spec: StreamSpec, numbers: Numbers) -> str:
    """One object on one line; docs/use/streams.md lists its keys."""
    document: dict[str, Any] = {"version": 1, "job": spec.job, "observed_at": time.time(), **vars(numbers)}
    document["target_s"] = spec.latency.target_seconds
    document["answered_most"] = spec.scaling.messages_per_second_max if spec.scaling else None
    return json.dumps({**document, "warnings": list(warnings(spec, numbers))})


def _rate(value: float | None) -> str:
    """Of a stream that answers thousands a second, or one in a minute."""
    return "unknown" if value is None else f"{value:,.1f}/s" if value >= 10 else f"{value:.2g}/s"


def _messages(count: float | None) -> str:
    return "unknown" if count is None else n(round(count), "message")


def _number(value: float | None, form: str = ".0f") -> str:
    return "unknown" if value is None else f"{value:,{form}}"
