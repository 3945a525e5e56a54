"""The OpenLineage objects of a run's tasks: which datasets a task reads and writes, their columns, and which run it was.

Each function returns a `Lineage` whose column edges lead to that task's own inputs, so a prediction can be traced back in
three steps: destination <- ledger <- inputs <- source table. Nothing is emitted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import attr
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    column_lineage_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    sql_job,
)

from nightshift.operators.lineage import datasets
from nightshift.operators.lineage.datasets import ColumnName, DatasetName
from nightshift.run.manifest import RunManifest
from nightshift.spec import columns

if TYPE_CHECKING:
    from nightshift.run.names import RunRef
    from nightshift.run.redo.redo import Redo
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

FACET_KEY: Final = "nightshift_run"
SCHEMA_ID: Final = "urn:nightshift:run-facet:1"
"""``$id`` of docs/lineage/nightshift-run-facet.schema.json."""


@attr.define
class NightshiftRunFacet(RunFacet):
    """Which run of nightshift an Airflow task worked on. Counts and digests are null until the run is sealed."""

    runId: str  # noqa: N815
    job: str
    partition: str
    model: str
    modelUri: str  # noqa: N815
    modelRevision: str  # noqa: N815
    rows: int | None = attr.field(default=None)
    predictions: int | None = attr.field(default=None)
    deadLetters: int | None = attr.field(default=None)  # noqa: N815
    manifestDigest: str | None = attr.field(default=None)  # noqa: N815
    merkleRoot: str | None = attr.field(default=None)  # noqa: N815
    completes: list[str] | None = attr.field(default=None)

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMA_ID}#/$defs/NightshiftRunFacet"


@dataclass(frozen=True)
class Lineage:
    """The lineage of one task; the fields are those of Airflow's OperatorLineage."""

    inputs: list[InputDataset] = field(default_factory=list)
    outputs: list[OutputDataset] = field(default_factory=list)
    run_facets: dict[str, RunFacet] = field(default_factory=dict)
    job_facets: dict[str, JobFacet] = field(default_factory=dict)


def extract_lineage(
    spec: JobSpec, run: RunRef, settings: Settings, *, rows: int | None = None, redo: Redo | None = None
) -> Lineage:
    """Source tables -> the run's inputs folder. rows: of the plan; None before there is one.

    redo: then the rows come from the earlier run's inputs, and its ledger shows which of them are dead letters.
    """
    query = spec.source.query
    carried = _carried(spec)
    if redo is not None:
        earlier = redo.earlier(run)
        taken, chosen = datasets.inputs_folder(settings.bucket, earlier), datasets.ledger_folder(settings.bucket, earlier)
        copied = {column: _edge([ColumnName(taken, column)], "IDENTITY", "copied from the earlier run") for column in carried}
        output = _output(datasets.inputs_folder(settings.bucket, run), carried, copied, rows)
        inputs = [_input(taken, carried), _input(chosen, [columns.ORDINAL, columns.DEAD_REASON])]
        return Lineage(inputs, [output], _run_facets(spec, run, None))
    sources = datasets.column_sources(query, settings.project, carried)
    edges = {column: _edge(sources[column], "IDENTITY", "source.query") for column in carried if column in sources}
    inputs = [
        InputDataset("bigquery", name, facets=_schema_of(_columns_of(name, sources)))
        for name in datasets.source_tables(query, settings.project)
    ]
    output = _output(datasets.inputs_folder(settings.bucket, run), carried, edges, rows)
    return Lineage(inputs, [output], _run_facets(spec, run, None), {"sql": sql_job.SQLJobFacet(query)})


def infer_lineage(spec: JobSpec, run: RunRef, settings: Settings, *, rows: int | None = None) -> Lineage:
    """Inputs folder -> ledger folder: the model makes ``prediction`` and ``reasoning`` from the template's columns."""
    source = datasets.inputs_folder(settings.bucket, run)
    made_by = f"{spec.task} by {spec.model.name} ({spec.model.uri}, revision {spec.model.revision})"
    edges = _carried_edges(spec, source)
    written = (columns.PREDICTION, columns.REASONING) if spec.request.keeps_reasoning else (columns.PREDICTION,)
    for name in written:
        edges[name] = _edge([ColumnName(source, each) for each in _template_columns(spec)], "TRANSFORMATION", made_by)
    output = _output(datasets.ledger_folder(settings.bucket, run), _chunk_columns(spec), edges, rows)
    return Lineage([_input(source, _carried(spec))], [output], _run_facets(spec, run, None))


def publish_lineage(spec: JobSpec, run: RunRef, settings: Settings, manifest: RunManifest | None = None) -> Lineage:
    """Ledger folder -> destination and dead letter table. manifest: None until the run is sealed.

    A redo's predictions come from the ledgers of the runs that it completes, too; its dead letters are its own.
    """
    source = datasets.ledger_folder(settings.bucket, run)
    completes = [each.run_id for each in manifest.completes] if manifest else []
    ledgers = [source, *(datasets.ledger_folder(settings.bucket, _sibling(run, run_id)) for run_id in completes)]
    edges = {
        name: _edge([ColumnName(each, name) for each in ledgers], "IDENTITY", "carried along") for name in spec.source.carried
    }
    answers = {spec.destination.column: columns.PREDICTION}
    answers |= {columns.REASONING: columns.REASONING} if spec.request.keeps_reasoning else {}
    for name, column in answers.items():
        edges[name] = _edge([ColumnName(each, column) for each in ledgers], "IDENTITY", "publish")
    written = [*spec.source.carried, *answers, spec.destination.partition_column]
    shown = manifest.totals if manifest else None
    destination = datasets.bigquery_table(spec.destination.table, settings.project)
    dead_letters = datasets.bigquery_table(f"{settings.dataset}.dead_letters", settings.project)
    dead_edges = {"key": _edge([ColumnName(source, name) for name in spec.source.key], "TRANSFORMATION", "JSON of the key")}
    outputs = [
        _output(destination, written, edges, shown and shown.predictions),
        _output(dead_letters, ["job", "partition_date", "run_id", "key"], dead_edges, shown and shown.dead_letters),
    ]
    inputs = [_input(each, _chunk_columns(spec)) for each in ledgers]
    return Lineage(inputs, outputs, _run_facets(spec, run, manifest))


def _chunk_columns(spec: JobSpec) -> tuple[str, ...]:
    return columns.with_carried(spec.source.carried, reasoning=spec.request.keeps_reasoning)


def run_facet(spec: JobSpec, run: RunRef, manifest: RunManifest | None) -> NightshiftRunFacet:
    """manifest: None until the run is sealed."""
    facet = NightshiftRunFacet(
        runId=run.run_id,
        job=run.job,
        partition=run.partition,
        model=spec.model.name,
        modelUri=spec.model.uri,
        modelRevision=spec.model.revision,
    )
    if manifest is None:
        return facet
    return attr.evolve(
        facet,
        rows=manifest.rows,
        predictions=manifest.predictions,
        deadLetters=manifest.dead_letters,
        manifestDigest=manifest.digest,
        merkleRoot=manifest.merkle_root,
        completes=[each.run_id for each in manifest.completes] or None,
    )


def _sibling(run: RunRef, run_id: str) -> RunRef:
    """Another run of the same partition."""
    return run.from_prefix(f"{run.job}/{run.partition}/{run_id}")


def _run_facets(spec: JobSpec, run: RunRef, manifest: RunManifest | None) -> dict[str, RunFacet]:
    return {FACET_KEY: run_facet(spec, run, manifest)}


def _template_columns(spec: JobSpec) -> tuple[str, ...]:
    from nightshift.tasks import base

    return base.load_kind(spec).columns


def _carried(spec: JobSpec) -> list[str]:
    """The query's columns that the run uses: those of its chunks first, then what the template reads."""
    return list(dict.fromkeys([*spec.source.carried, *_template_columns(spec)]))


def _columns_of(table: str, sources: Mapping[str, Sequence[ColumnName]]) -> list[str]:
    return sorted({source.column for made_of in sources.values() for source in made_of if source.dataset.name == table})


def _carried_edges(spec: JobSpec, source: DatasetName) -> dict[str, column_lineage_dataset.Fields]:
    return {name: _edge([ColumnName(source, name)], "IDENTITY", "carried along") for name in spec.source.carried}


def _edge(sources: Iterable[ColumnName], subtype: str, description: str) -> column_lineage_dataset.Fields:
    how = column_lineage_dataset.Transformation(type="DIRECT", subtype=subtype, description=description, masking=False)
    return column_lineage_dataset.Fields(
        inputFields=[
            column_lineage_dataset.InputField(source.dataset.namespace, source.dataset.name, source.column, [how])
            for source in sources
        ]
    )


def _schema_of(columns: Sequence[str]) -> dict[str, DatasetFacet]:
    if not columns:
        return {}
    return {
        "schema": schema_dataset.SchemaDatasetFacet([schema_dataset.SchemaDatasetFacetFields(name=name) for name in columns])
    }


def _input(dataset: DatasetName, columns: Sequence[str]) -> InputDataset:
    return InputDataset(dataset.namespace, dataset.name, facets=_schema_of(columns))


def _output(
    dataset: DatasetName, columns: Sequence[str], edges: Mapping[str, column_lineage_dataset.Fields], rows: int | None
) -> OutputDataset:
    facets = _schema_of(columns)
    if edges:
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(fields=dict(edges))
    statistics = {"outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)}
    return OutputDataset(dataset.namespace, dataset.name, facets=facets, outputFacets={} if rows is None else dict(statistics))
