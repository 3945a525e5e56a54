"""A run's prompts read as they did when it was opened, whatever release goes on with it."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from nightshift import exits
from nightshift.run.names import canonical_json
from tests.builders import a_spec
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun
from tests.integration.driver.tables import prepare_table

pytestmark = [pytest.mark.integration, pytest.mark.gate]

PRICES = [Decimal("0E-9"), Decimal("12.500000000"), Decimal("40.000000000"), None]
NEW = ["0 0 |True", "12.5 12.5 |True", "40 40 |True", "  |True"]
OLD = ["0E-9 0E-9 None|True", "12.500000000 12.500000000 None|True", "40.000000000 40.000000000 None|True", "  None|True"]


def prepare(tmp_path: Path) -> PreparedRun:
    part = pa.array([{"a": None}] * len(PRICES), pa.struct([("a", pa.string())]))
    template = "{{ price }} {{ price ~ '' }} {{ part.a | string }}|{{ part.a is none }}"
    columns = {"price": pa.array(PRICES, pa.decimal128(38, 9)), "part": part}
    return prepare_table(tmp_path, a_spec(request__input=template), columns)


def record_of(prepared: PreparedRun) -> dict[str, object]:
    record: dict[str, object] = json.loads((prepared.folder / "spec.json").read_bytes())
    return record


def asked(prepared: PreparedRun) -> list[str]:
    with CannedEngine() as engine:
        assert DriverProcess(prepared, engine.url).finish() == exits.DONE
        return sorted(engine.seen)


def test_a_new_run_reads_as_bigquery_does(tmp_path: Path) -> None:
    prepared = prepare(tmp_path)

    assert record_of(prepared)["rendering"] == "sql"
    assert asked(prepared) == sorted(NEW)


def test_a_run_of_the_previous_release_reads_as_it_began(tmp_path: Path) -> None:
    prepared = prepare(tmp_path)
    record = record_of(prepared)
    del record["rendering"]
    (prepared.folder / "spec.json").write_bytes(canonical_json(record))

    assert asked(prepared) == sorted(OLD)


def test_a_rendering_of_a_later_release_is_refused(tmp_path: Path) -> None:
    prepared = prepare(tmp_path)
    (prepared.folder / "spec.json").write_bytes(canonical_json({**record_of(prepared), "rendering": "html"}))
    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url)
        assert driver.finish() == exits.CONFIG
        assert engine.seen == []

    [error] = [entry["error"] for entry in driver.log if entry["message"] == "cannot continue"]
    assert "'html' is not a valid Rendering" in error
