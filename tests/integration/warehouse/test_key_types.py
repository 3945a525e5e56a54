"""Copied columns of every type, NULLs included, from the source table through the real driver to the destination."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from obstore.store import ObjectStore

from nightshift.operators.publish import PublishOperator
from nightshift.run import manifest, opening
from nightshift.run.manifest import RunManifest, load_manifest
from nightshift.run.names import RunRef
from nightshift.run.seal import seal
from nightshift.warehouse.schema import CARRIED_TYPES
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import PARTITION, Night

pytestmark = pytest.mark.integration

VALUES = {
    "BIGNUMERIC": "BIGNUMERIC '-12345678901234567890.000000000000000001'",
    "BOOL": "FALSE",
    "BYTES": "b'\\x00\\xff'",
    "DATE": "DATE '0001-01-01'",
    "DATETIME": "DATETIME '9999-12-31 23:59:59.999999'",
    "FLOAT64": "-0.1",
    "INT64": "-9223372036854775808",
    "NUMERIC": "NUMERIC '99999999999999999999999999999.999999999'",
    "STRING": "'\U0001f600 \"quotes\" <b>'",
    "TIME": "TIME '23:59:59.999999'",
    "TIMESTAMP": "TIMESTAMP '1969-12-31 23:59:59.000001+00'",
}
# In a dead letter: by BigQuery's TO_JSON_STRING, which writes as a string what a double cannot hold.
AS_JSON = {
    "BIGNUMERIC": "-12345678901234567890.000000000000000001",
    "BOOL": False,
    "BYTES": "AP8=",
    "DATE": "0001-01-01",
    "DATETIME": "9999-12-31T23:59:59.999999",
    "FLOAT64": -0.1,
    "INT64": "-9223372036854775808",
    "NUMERIC": "99999999999999999999999999999.999999999",
    "STRING": '😀 "quotes" <b>',
    "TIME": "23:59:59.999999",
    "TIMESTAMP": "1969-12-31T23:59:59.000001Z",
}


@pytest.mark.gate
def test_every_type_has_a_value_here() -> None:
    assert set(VALUES) == set(AS_JSON) == CARRIED_TYPES


@pytest.fixture
def keyed(night: Night) -> Night:
    """A night over five rows, the last two with the same keys: a key need not be unique. The second and third have no text.

    A column of each type is in the key, and another one is passed through.
    """
    name = night.settings.bucket
    keys, passed = ([f"{letter}_{kind.lower()}" for kind in VALUES] for letter in "kp")
    columns = ", ".join(f"{key} {kind}" for names in (keys, passed) for key, kind in zip(names, VALUES, strict=True))
    night.rows(f"CREATE TABLE `{name}.keyed` ({columns}, text STRING, day DATE)")
    full, null = ", ".join([*VALUES.values()] * 2), ", ".join(["NULL"] * len(VALUES) * 2)
    rows = [
        f"({values}, '{text}', DATE '{PARTITION}')"
        for values, text in ((null, "a"), (null, ""), (full, ""), (full, "b"), (full, "c"))
    ]
    night.rows(f"INSERT INTO `{name}.keyed` VALUES {', '.join(rows)}")
    source = {
        "query": f"SELECT * FROM `{name}.keyed` WHERE day = @partition",
        "key": tuple(keys),
        "pass_through": tuple(passed),
    }
    tolerant = night.spec.dead_letters.model_copy(update={"tolerate": 2})
    source_now = night.spec.source.model_copy(update=source)
    night.spec = night.spec.model_copy(update={"source": source_now, "dead_letters": tolerant})
    return night


def sealed_run(night: Night) -> RunRef:
    """A run that went through the real tasks up to 'seal'."""
    run = opening.open_run(night.store, night.spec, PARTITION, opened_by="test")
    plan = night.extract(run)
    night.compute(run, plan)
    seal(night.store, run, night.spec, plan)
    return run


def published(night: Night, run: RunRef) -> dict[str, Any]:
    """The task 'publish', as Airflow executes it."""
    with DAG("job", schedule=None):
        task = PublishOperator(task_id="publish", run_prefix=run.prefix, terms="", asked_at="")
    task.__dict__.update(settings=night.settings, store=night.store, warehouse=night.warehouse)
    context: Any = {"outlet_events": {}, "dag_run": SimpleNamespace(run_id="night")}
    return task.execute(context)


def shown(night: Night, table: str, condition: str) -> list[str]:
    """The copied columns of the rows, sorted."""
    found = night.rows(
        f"SELECT {', '.join(night.spec.source.carried)} FROM `{night.settings.bucket}.{table}` WHERE {condition}"
    )
    return sorted(map(repr, found))


def types(night: Night, table: str) -> list[tuple[str, str]]:
    """Names and types of the copied columns, in the table's order."""
    fields = night.client.get_table(f"{PROJECT}.{night.settings.bucket}.{table}").schema
    return [(field.name, field.field_type) for field in fields if field.name in night.spec.source.carried]


@pytest.mark.gate
def test_columns_come_out_as_they_went_in_though_the_source_is_dropped_before_publishing(
    keyed: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sealed_run(keyed)
    there = shown(keyed, "keyed", "text != ''"), types(keyed, "keyed")
    keyed.rows(f"DROP TABLE `{keyed.settings.bucket}.keyed`")
    reads: list[RunRef] = []

    def counted(store: ObjectStore, run: RunRef) -> RunManifest | None:
        reads.append(run)
        return load_manifest(store, run)

    # What renders the prompts of dead letters reads it by a name of its own, which it must have by now.
    importlib.import_module("nightshift.status.folder")
    monkeypatch.setattr(manifest, "load_manifest", counted)
    counts = published(keyed, run)

    assert (shown(keyed, "vectors", "TRUE"), types(keyed, "vectors")) == there
    assert len(there[0]) == 3
    assert counts["source_tables"] == [f"{PROJECT}.{keyed.settings.bucket}.keyed"]
    assert reads == [run], "the task itself reads the manifest once"
    dead = keyed.rows(f"SELECT key, reason FROM `{PROJECT}.{keyed.settings.dataset}.dead_letters` ORDER BY LENGTH(key)")
    assert [json.loads(key) for key, _ in dead] == [
        dict.fromkeys(keyed.spec.source.key),
        {f"k_{kind.lower()}": value for kind, value in AS_JSON.items()},
    ]
    assert {reason for _, reason in dead} == {"bad_input"}
