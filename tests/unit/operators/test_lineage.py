"""Names and facets of lineage, held against the OpenLineage client and Airflow's Google provider themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema  # type: ignore[import-untyped]
import pytest
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.serde import Serde

from nightshift.operators.lineage import datasets, facets
from nightshift.operators.lineage.datasets import DatasetName
from nightshift.run.manifest import RunManifest
from nightshift.settings import Settings
from tests.builders import RUN, a_manifest, a_spec

pytestmark = pytest.mark.unit

SETTINGS = Settings(bucket="lake", project="acme")
QUERY = "SELECT name, TRIM(summary) AS summary, description FROM `catalog.packages` WHERE snapshot_date = @partition"
SPEC = a_spec(source={"query": QUERY, "key": ["name"]}, request__input="{{ summary }} {{ description }}")
MANIFEST = a_manifest(rows=3, predictions=2, dead_letters=1, merkle_root="ab" * 32, digest="cd" * 32)
SCHEMA = Path(__file__).resolve().parents[3] / "docs" / "lineage" / "nightshift-run-facet.schema.json"


@pytest.mark.parametrize(
    "path",
    [
        "a/b/*.parquet",
        "a/b/pre_*",
        "a/b/c.parquet",
        "a/b/c.",
        "a/b/",
        "a/b",
        "/a/b/c.txt",
        "file.txt",
        "*",
        "",
        "/",
        "a.b/c",
        "a*b*c",
    ],
)
def test_cloud_storage_names_are_those_of_airflows_google_provider(path: str) -> None:
    from airflow.providers.google.cloud.openlineage.utils import extract_ds_name_from_gcs_path

    assert datasets.gcs_path("lake", path) == DatasetName("gs://lake", extract_ds_name_from_gcs_path(path))


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("d.t", "acme.d.t"),
        ("other.d.t", "other.d.t"),
        ("example.com:other.d.t", "example.com:other.d.t"),
        ("d.t$20261101", "acme.d.t"),
    ],
)
def test_a_bigquery_table_is_named_with_its_project_and_without_its_partition(table: str, name: str) -> None:
    assert datasets.bigquery_table(table, "acme") == DatasetName("bigquery", name)


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        (QUERY, ["acme.catalog.packages"]),
        ("SELECT 1 AS a FROM `p.d.t` JOIN d.u USING (id); -- done", ["acme.d.u", "p.d.t"]),
        ("WITH x AS (SELECT * FROM d.t) SELECT * FROM x UNION ALL SELECT * FROM `q`.d.v", ["acme.d.t", "q.d.v"]),
        ("SELECT * FROM d.t, UNNEST(items) AS item", ["acme.d.t"]),
        ("SELECT 1 AS a", []),
        ("SELEC nonsense FROM (", []),
    ],
)
def test_the_tables_of_a_query(query: str, tables: list[str]) -> None:
    assert datasets.source_tables(query, "acme") == tables


def test_columns_are_followed_through_a_plain_select() -> None:
    sources = datasets.column_sources("SELECT name, CONCAT(a, t.b) AS text, * FROM d.t AS t", "acme", ["name", "text", "c"])

    assert {column: [source.column for source in made_of] for column, made_of in sources.items()} == {
        "name": ["name"],
        "text": ["a", "b"],
        "c": ["c"],
    }
    assert {source.dataset.name for made_of in sources.values() for source in made_of} == {"acme.d.t"}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM d.t JOIN d.u USING (id)",
        "SELECT a FROM (SELECT a FROM d.t)",
        "WITH x AS (SELECT a FROM d.t) SELECT a FROM x",
        "SELECT a FROM d.t, UNNEST(items) AS a",
        "SELECT a FROM d.t UNION ALL SELECT a FROM d.u",
        "SELECT * REPLACE (b AS a) FROM d.t",
        "SELECT * EXCEPT (b), b + 1 AS a FROM d.t",
        "SELECT t.* FROM d.t",
    ],
)
def test_columns_of_anything_else_are_not_guessed(query: str) -> None:
    assert datasets.column_sources(query, "acme", ["a"]) == {}


def test_the_three_tasks_make_a_chain_from_table_to_table() -> None:
    extract = facets.extract_lineage(SPEC, RUN, SETTINGS, rows=3)
    infer = facets.infer_lineage(SPEC, RUN, SETTINGS)
    publish = facets.publish_lineage(SPEC, RUN, SETTINGS, MANIFEST)

    assert [(item.namespace, item.name) for item in extract.inputs] == [("bigquery", "acme.catalog.packages")]
    assert [(item.namespace, item.name) for item in extract.outputs] == [("gs://lake", f"{RUN.prefix}/inputs")]
    assert [item.name for item in infer.inputs] == [item.name for item in extract.outputs]
    assert [item.name for item in publish.inputs] == [item.name for item in infer.outputs] == [f"_workers/{RUN.prefix}"]
    assert [item.name for item in publish.outputs] == ["acme.d.out", "acme.nightshift.dead_letters"]


def test_a_prediction_leads_back_to_the_columns_of_the_source() -> None:
    tasks = [
        facets.extract_lineage(SPEC, RUN, SETTINGS),
        facets.infer_lineage(SPEC, RUN, SETTINGS),
        facets.publish_lineage(SPEC, RUN, SETTINGS, MANIFEST),
    ]
    edges = {}
    for task in tasks:
        for output in _plain(task)["outputs"]:
            for column, made_of in output["facets"]["columnLineage"]["fields"].items():
                edges[(output["name"], column)] = {(source["name"], source["field"]) for source in made_of["inputFields"]}
    reached, frontier = set(), {("acme.d.out", "vector")}
    while frontier:
        reached |= frontier
        frontier = set().union(*(edges.get(column, set()) for column in frontier))

    leaves = {column for column in reached if column not in edges}
    assert leaves == {("acme.catalog.packages", "summary"), ("acme.catalog.packages", "description")}


def test_rows_are_reported_only_when_they_are_known() -> None:
    before = facets.publish_lineage(SPEC, RUN, SETTINGS)
    after = facets.publish_lineage(SPEC, RUN, SETTINGS, MANIFEST)

    assert [item.outputFacets for item in before.outputs] == [{}, {}]
    assert [item["outputFacets"]["outputStatistics"]["rowCount"] for item in _plain(after)["outputs"]] == [2, 1]


@pytest.mark.parametrize("manifest", [None, MANIFEST])
def test_the_run_facet_keeps_its_published_schema(manifest: RunManifest | None) -> None:
    facet = _plain(facets.publish_lineage(SPEC, RUN, SETTINGS, manifest))["run"]["facets"]["nightshift_run"]
    schema = json.loads(SCHEMA.read_text())

    pointer = facet["_schemaURL"].removeprefix(schema["$id"])
    assert pointer == "#/$defs/NightshiftRunFacet"
    jsonschema.Draft202012Validator({**schema, "$ref": pointer}).validate(facet)
    assert facet["runId"] == RUN.run_id
    assert facet.get("deadLetters") == (1 if manifest else None)


def _plain(lineage: facets.Lineage) -> dict[str, Any]:
    """The event that the OpenLineage client would send, read back from its JSON."""
    event = RunEvent(
        eventTime="2026-11-21T02:00:00+00:00",
        eventType=RunState.COMPLETE,
        run=Run(str(UUID(int=1)), facets=lineage.run_facets),
        job=Job("airflow", "job.publish", facets=lineage.job_facets),
        inputs=lineage.inputs,
        outputs=lineage.outputs,
        producer="https://openlineage.io",
    )
    return dict(json.loads(Serde.to_json(event)))
