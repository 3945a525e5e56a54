"""`nightshift status` of a stream: what it makes of numbers; integration/stream/test_stream_status.py has a real Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nightshift import cli
from nightshift.stream.status.prometheus import NoAnswer, Prometheus
from nightshift.stream.status.report import Numbers, measure, text, to_json, warnings
from tests.stream_manifests import EXAMPLE, a_stream

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

    assert "backlog     unknown messages\n" in lines
    assert json.loads(to_json(a_stream(), numbers(p99_s=None)))["p99_s"] is None


class Asked:
    """Answers every query with the number that a part of it has here, and keeps the queries."""

    def __init__(self, **values: float) -> None:
        self.values = values
        self.queries: list[str] = []

    def ask(self, query: str) -> float | None:
        self.queries.append(query)
        return next((value for part, value in self.values.items() if part in query), None)


def test_arrivals_are_what_was_acknowledged_and_what_the_backlog_grew_by() -> None:
    grown: Any = Asked(deriv=-3.0, acknowledged=10.0)
    drained: Any = Asked(deriv=-30.0, acknowledged=10.0)

    assert measure(grown, a_stream(), 60).arriving == 7.0
    assert measure(drained, a_stream(), 60).arriving == 0.0, "two estimates at different moments"
    assert measure(Asked(deriv=1.0), a_stream(), 60).arriving is None  # type: ignore[arg-type]
    assert all("[60s]" in query for query in grown.queries if "rate(" in query or "deriv(" in query)


def test_the_subscription_is_asked_for_without_its_project() -> None:
    asked: Any = Asked()
    measure(asked, a_stream(source__subscription="projects/other/subscriptions/texts"), 60)

    assert any('subscription_id="texts"' in query for query in asked.queries)
    assert not any("projects/" in query for query in asked.queries)


def test_a_watched_folder_has_no_backlog_that_could_be_asked_for() -> None:
    watched = a_stream(source={"prefix": "gs://bucket/in"})
    asked: Any = Asked(deriv=1.0, acknowledged=10.0, answered=9.0)
    found = measure(asked, watched, 60)

    assert (found.backlog, found.oldest_s, found.arriving, found.answered) == (None, None, None, 9.0)
    assert not any("subscription" in query for query in asked.queries)
    assert list(warnings(watched, numbers(backlog=None, oldest_s=None, arriving=None))) == []


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
        Prometheus("http://127.0.0.1:1").ask("1")
