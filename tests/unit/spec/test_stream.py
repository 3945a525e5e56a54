"""The stream file: what it shares with a nightly job, and what tells the two apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from nightshift.spec import JobSpec, SpecErrors, StreamSpec, load, load_all, load_files, load_stream
from nightshift.spec.schema import json_schema, json_schema_text
from nightshift.spec.sinks.files import FileSink
from nightshift.spec.sinks.postgres import TableSink
from nightshift.spec.stream import Messages, Watched
from nightshift.tasks.base import load_kind
from tests.unit.spec_file import DEMO, ROOT, changed, write

pytestmark = pytest.mark.unit

FILES = {"files": "gs://bucket/answers", "column": "embedding"}
EXAMPLE = ROOT / "streams/package-texts.yaml"


def stream(**changes: Any) -> dict[str, Any]:
    """The example with some values changed."""
    return changed(EXAMPLE, **changes)


def problems(path: Path, *, as_job: bool = False) -> str:
    with pytest.raises(SpecErrors) as caught:
        load(path) if as_job else load_stream(path)
    return str(caught.value)


def test_the_example_loads() -> None:
    spec = load_stream(EXAMPLE)

    assert isinstance(spec.source, Messages)
    assert (spec.source.subscription, spec.source.format, spec.source.key) == ("package-texts", "json", ("name", "version"))
    assert (spec.latency.target_seconds, spec.latency.flush_seconds) == (60, 0.5)
    assert (spec.source.ordering, spec.source.attributes) == (False, ())


def test_the_model_of_a_stream_is_asked_as_that_of_a_night() -> None:
    """Two files of the same model have the same sections, and make the same requests."""
    night, live = load(DEMO), load_stream(EXAMPLE)
    row = {"summary": "a parser", "description": "of YAML"}
    bodies = []
    for spec in (night, live):
        kind = load_kind(spec)
        bodies.append(kind.request([kind.render(row, 0)], 0))

    assert (night.task, night.model, night.engine) == (live.task, live.model, live.engine)
    assert bodies[0] == bodies[1]


def test_the_published_schema_is_current() -> None:
    """`nightshift schema --stream > docs/stream.schema.json` renews it."""
    assert (ROOT / "docs/stream.schema.json").read_text(encoding="utf-8") == json_schema_text(StreamSpec)


def test_the_schema_agrees_about_the_example_and_about_a_bad_one() -> None:
    schema = json_schema(StreamSpec)
    jsonschema.validate(stream(), schema)

    with pytest.raises(jsonschema.ValidationError, match="is not valid under any of the given schemas") as caught:
        jsonschema.validate(stream(source__format="xml"), schema)
    assert any("is not one of" in each.message for each in caught.value.context or ())
    jsonschema.validate(stream(source={"prefix": "gs://bucket/texts"}, sink=FILES), schema)


def test_scaling_has_honest_defaults(tmp_path: Path) -> None:
    """What a machine can do is measured, and how many there are is a quota: neither has a default."""
    spec = load_stream(write(tmp_path, stream(scaling={"messages_per_second": 10, "servers": {"max": 3}})))
    assert spec.scaling is not None

    assert (spec.scaling.subscribers.min, spec.scaling.subscribers_max, spec.scaling.servers.min) == (1, 3, 1)
    assert (spec.scaling.messages_per_second_max, spec.waiting_requests) == (30, 16)
    for missing, rest in (("messages_per_second", {"servers": {"max": 3}}), ("servers", {"messages_per_second": 10})):
        assert f"scaling.{missing}: The key is missing." in problems(write(tmp_path, stream(scaling=rest)))


def test_a_stream_needs_no_scaling(tmp_path: Path) -> None:
    assert load_stream(write(tmp_path, stream(scaling=None))).scaling is None


def test_a_stream_is_not_a_night_and_a_night_is_not_a_stream() -> None:
    assert "source: The file describes a stream. Run it with nightshift stream" in problems(EXAMPLE, as_job=True)
    assert "source: The file describes a nightly job. Airflow runs it" in problems(DEMO)


def test_validate_reads_both_in_one_folder(tmp_path: Path) -> None:
    job, live = write(tmp_path, DEMO.read_text(), "a.yaml"), write(tmp_path, stream(), "b.yaml")
    specs, errors = load_files([job, live])

    assert [type(spec) for spec in specs.values()] == [JobSpec, StreamSpec]
    assert errors == {}


def test_a_stream_among_nightly_jobs_is_a_mistake(tmp_path: Path) -> None:
    """Airflow makes a DAG of each file there."""
    job, live = write(tmp_path, DEMO.read_text(), "a.yaml"), write(tmp_path, stream(), "b.yaml")
    jobs, errors = load_all(tmp_path, relative_to=tmp_path)

    assert (list(jobs), list(errors)) == ([job], [live])
    assert str(errors[live]) == (
        "b.yaml: The file describes a stream, not a nightly job. Move it to another folder, and run it with nightshift stream."
    )


def test_two_streams_do_not_share_a_subscription(tmp_path: Path) -> None:
    one, two = write(tmp_path, stream(), "a.yaml"), write(tmp_path, stream(job="other"), "b.yaml")
    specs, errors = load_files([one, two])

    assert list(specs) == [one]
    assert "source.subscription: The subscription is already that of" in str(errors[two])


@pytest.mark.parametrize(("written", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1m", 60.0)])
def test_a_short_time(tmp_path: Path, written: str, seconds: float) -> None:
    spec = load_stream(write(tmp_path, stream(latency={"target": "5m", "flush": written})))

    assert spec.latency.flush_seconds == seconds


@pytest.mark.parametrize("written", ["0s", "11m", "2 s", "1h", 2, "1.5s"])
def test_a_time_that_is_not_short(tmp_path: Path, written: Any) -> None:
    assert "latency.flush:" in problems(write(tmp_path, stream(latency={"target": "1h", "flush": written})))


def test_a_folder_is_watched_and_files_are_written(tmp_path: Path) -> None:
    spec = load_stream(write(tmp_path, stream(source={"prefix": "gs://bucket/in", "key": ["name"]}, sink=FILES)))

    assert isinstance(spec.source, Watched)
    assert isinstance(spec.sink, FileSink)
    assert (spec.source.format, spec.source.every_seconds, spec.sink.every_seconds, spec.sink.rows) == ("json", 10, 30, 10_000)
    assert spec.summary == "from gs://bucket/in into gs://bucket/answers within 60s"
    assert spec.sink.dead_letters_place == "the folder gs://bucket/answers/dead_letters"
    assert spec.source.origin == ("prefix", "gs://bucket/in")
    sink = load_stream(EXAMPLE).sink
    assert isinstance(sink, TableSink)
    assert (sink.place, sink.dead_letters_place) == ("package_vectors", "the table package_vectors_dead_letters")


@pytest.mark.parametrize("other", ["gs://bucket/answers", "gs://bucket/answers/inside", "gs://bucket"])
def test_two_streams_do_not_mix_their_files(tmp_path: Path, other: str) -> None:
    one = write(tmp_path, stream(sink=FILES), "a.yaml")
    source = {"subscription": "others", "key": ["name"]}
    sink = {**FILES, "files": other if other != "gs://bucket" else "gs://bucket/answers-too"}
    two = write(tmp_path, stream(job="other", source=source, sink=sink), "b.yaml")
    _, errors = load_files([one, two])

    said = str(errors.get(two, ""))
    assert ("sink.files: The folder" in said) == (other != "gs://bucket")


def test_a_stream_and_a_night_do_not_share_a_table(tmp_path: Path) -> None:
    night = write(tmp_path, DEMO.read_text(), "a.yaml")
    table = load(DEMO).destination.table
    live = write(tmp_path, stream(sink={**FILES, "bigquery": table}), "b.yaml")

    for first, second, field in ((night, live, "sink.bigquery"), (live, night, "destination.table")):
        _, errors = load_files([first, second])
        assert f"{field}: The table {table} is already the destination of" in str(errors[second])


@pytest.mark.parametrize("project", ["a?b=c", "..", "a b", "p%2f..", "A", '"}', "p#x", "p:x"])
@pytest.mark.parametrize(("path", "kind"), [("source__subscription", "subscription"), ("dead_letters__topic", "topic")])
def test_a_project_of_pubsub_is_part_of_urls(tmp_path: Path, path: str, kind: str, project: str) -> None:
    found = problems(write(tmp_path, stream(**{path: f"projects/{project}/{kind}s/package-texts"})))

    assert f"{path.replace('__', '.')}: {project!r} is not a Google Cloud project id." in found


@pytest.mark.parametrize("project", ["acme-prod", "example.com:acme-1"])
def test_projects_of_pubsub(tmp_path: Path, project: str) -> None:
    load_stream(write(tmp_path, stream(source__subscription=f"projects/{project}/subscriptions/package-texts")))


@pytest.mark.parametrize("rate", [1e308, 1e-300, 10**90])
def test_a_rate_that_no_server_has(tmp_path: Path, rate: float) -> None:
    found = problems(write(tmp_path, stream(scaling={"messages_per_second": rate, "servers": {"max": 1}})))

    assert "scaling.messages_per_second: " in found
