"""`nightshift status` of a stream: what it makes of numbers; integration/stream/test_stream_status.py has a real Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nightshift import cli
from nightshift.stream.status import prometheus
from nightshift.stream.status.prometheus import NoAnswer, Prometheus
from nightshift.stream.status.queries import Place
from nightshift.stream.status.report import Numbers, Sources, measure, text, to_json, warnings
from tests.stream_manifests import CLUSTER, EXAMPLE, a_stream

pytestmark = pytest.mark.unit

WELL: dict[str, Any] = {
    "backlog": 1204.0,
    "oldest_s": 14.0,
    "arriving": 38.2,
    "answered": 37.9,
    "dead": 3.0,
    "subscribers": 2,
    "p50_s": 0.4,
    "p99_s": 9.1,
}
"""The stream of a_stream() answers 50 a second at most, within 60 s."""


def numbers(**changes: Any) -> Numbers:
    return Numbers(**{**WELL, **changes})


def test_a_stream_that_keeps_up() -> None:
    assert text(a_stream(), numbers(), 600).splitlines() == [
        "package-texts  embedding by all-minilm-l6-v2 from package-texts into package_vectors within 60s",
        "backlog     1,204 messages, the oldest 14 s old",
        "arriving    38.2/s, over the last 600 s",
        "answered    37.9/s by 2 subscribers; 4 can answer 50.0/s",
        "latency     p50 0.40 s, p99 9.10 s",
        "dead        3 messages",
    ]


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"arriving": 60.0}, "60.0/s arrive, and scaling.servers.max answers 50.0/s: the backlog grows until fewer arrive."),
        ({"p99_s": 61.0}, "One message in a hundred takes 61 s or more; latency.target is 60s."),
        ({"oldest_s": 300.0, "p99_s": None}, "A message has waited for 300 s; latency.target is 60s."),
        ({"subscribers": 0}, "Prometheus knows no subscriber of this stream"),
        ({"backlog": None, "oldest_s": None}, "Prometheus knows no subscription package-texts"),
    ],
)
def test_what_is_worth_a_warning(changes: dict[str, Any], warning: str) -> None:
    [found] = warnings(a_stream(), numbers(**changes))

    assert found.startswith(warning)


def test_what_is_not() -> None:
    """An estimate that is a little above what can be answered, or a stream that says nothing of scaling."""
    assert list(warnings(a_stream(), numbers(arriving=51.0))) == []
    assert list(warnings(a_stream(scaling=None), numbers(arriving=5000.0))) == []


def test_what_prometheus_does_not_have_is_unknown() -> None:
    lines = text(a_stream(), Numbers(None, None, None, None, None, 0, None, None), 60)

    assert "backlog     unknown\n" in lines
    assert json.loads(to_json(a_stream(), numbers(p99_s=None)))["p99_s"] is None


class Asked:
    """Answers every query with the number that a part of it has here, and keeps the queries."""

    def __init__(self, **values: float) -> None:
        self.place = Place("http://prometheus")
        self.values = values
        self.queries: list[str] = []

    @property
    def both(self) -> Sources:
        """It has Pub/Sub's numbers and those of pods."""
        asked: Any = self
        return Sources(asked, asked)

    def ask(self, query: str) -> float | None:
        self.queries.append(query)
        return next((value for part, value in self.values.items() if part in query), None)


def test_arrivals_are_what_was_acknowledged_and_what_the_backlog_grew_by() -> None:
    grown = Asked(deriv=-3.0, acknowledged=10.0)
    drained = Asked(deriv=-30.0, acknowledged=10.0)

    assert measure(grown.both, a_stream(), 60).arriving == 7.0
    assert measure(drained.both, a_stream(), 60).arriving == 0.0, "two estimates at different moments"
    assert measure(Asked(deriv=1.0).both, a_stream(), 60).arriving is None
    assert all("[60s]" in query for query in grown.queries if "rate(" in query or "deriv(" in query)


def test_the_subscription_is_asked_for_without_its_project() -> None:
    asked = Asked()
    measure(asked.both, a_stream(source__subscription="projects/other/subscriptions/texts"), 60)

    assert any('subscription_id="texts"' in query for query in asked.queries)
    assert not any("projects/" in query for query in asked.queries)


def test_a_watched_folder_has_no_backlog_that_could_be_asked_for() -> None:
    watched = a_stream(source={"prefix": "gs://bucket/in"})
    asked = Asked(deriv=1.0, acknowledged=10.0, answered=9.0)
    found = measure(asked.both, watched, 60)

    assert (found.backlog, found.oldest_s, found.arriving, found.answered) == (None, None, None, 9.0)
    assert not any("subscription" in query for query in asked.queries)
    assert list(warnings(watched, numbers(backlog=None, oldest_s=None, arriving=None))) == []


GOOGLE_PROJECT = re.compile(r"^https://monitoring\.googleapis\.com/v1/projects/([^/]+)/location/global/prometheus$")


@pytest.mark.parametrize(
    ("subscription", "owner"), [("texts", "acme"), ("projects/other/subscriptions/texts", "other")], ids=["ours", "anothers"]
)
def test_each_number_is_asked_of_the_project_that_has_it(
    monkeypatch: pytest.MonkeyPatch, subscription: str, owner: str
) -> None:
    """And of nothing else in its metrics scope, where another project may have the same names."""
    monkeypatch.setattr(prometheus, "_token", lambda: "token")
    asked: list[tuple[str, str]] = []

    def ask(self: Prometheus, query: str) -> float:
        found = GOOGLE_PROJECT.match(self.place.url)
        assert found
        asked.append((found[1], query))
        return 1.0

    monkeypatch.setattr(Prometheus, "ask", ask)
    spec = a_stream(source__subscription=subscription)
    environment = {"NIGHTSHIFT_PROJECT": "acme", "NIGHTSHIFT_RUNTIME": CLUSTER, "NIGHTSHIFT_NAMESPACE": "streams"}
    numbers = measure(Sources.google(spec, environment), spec, 60)

    assert None not in vars(numbers).values()
    pubsub = [(project, query) for project, query in asked if "pubsub_" in query]
    pods = [each for each in asked if each not in pubsub]
    assert len(pubsub) == 3
    assert {project for project, _ in pubsub} == {owner}
    assert all(f'project_id="{owner}",subscription_id="texts"' in query for _, query in pubsub)
    assert len(pods) == 6
    assert {project for project, _ in pods} == {"acme-cluster"}
    cluster = 'project_id="acme-cluster",location="europe-west4",cluster="nightshift",namespace="streams"'
    assert all(f'{cluster},nightshift_job="package-texts"' in query for _, query in pods)


def test_a_watched_folder_needs_the_cluster_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_token", lambda: "token")
    watched = a_stream(source={"prefix": "gs://bucket/in"})

    assert Sources.google(watched, {"NIGHTSHIFT_RUNTIME": CLUSTER}).subscription is None


@pytest.mark.parametrize("runtime", ["", "kubernetes", "local:/tmp/x", "gke:nightshift"])
def test_a_cluster_that_nobody_named_is_asked_for(runtime: str) -> None:
    with pytest.raises(
        ValueError, match=r"^NIGHTSHIFT_RUNTIME does not name the cluster.* Set it to gke:projects/.*--prometheus"
    ):
        Sources.google(a_stream(), {"NIGHTSHIFT_PROJECT": "acme", "NIGHTSHIFT_RUNTIME": runtime})


def test_the_documented_keys() -> None:
    page = (EXAMPLE.parents[1] / "docs/use/streams.md").read_text()

    assert [key for key in json.loads(to_json(a_stream(), numbers())) if f"`{key}`" not in page] == []


def test_a_file_that_is_broken_and_a_project_that_nobody_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_PROJECT", raising=False)
    broken = tmp_path / "stream.yaml"
    broken.write_text("sink: {}\n")

    assert cli.main(["status", str(broken)]) == 2
    assert cli.main(["status", str(EXAMPLE)]) == 2
    said = capsys.readouterr().err
    assert "source: The key is missing" in said
    assert f"{EXAMPLE}: source.subscription has no project. Set NIGHTSHIFT_PROJECT, or pass --prometheus URL." in said


def test_a_prometheus_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", str(EXAMPLE), "--prometheus", "http://127.0.0.1:1"]) == 75
    assert capsys.readouterr().err.startswith("nightshift status: http://127.0.0.1:1: ")
    with pytest.raises(NoAnswer):
        Prometheus(Place("http://127.0.0.1:1")).ask("1")
