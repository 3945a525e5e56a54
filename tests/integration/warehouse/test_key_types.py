"""Keys of every type that may be one, NULLs included, from the source table through the real driver to the destination."""

from __future__ import annotations

import json

import pytest

from nightshift import exits
from nightshift.run import opening
from nightshift.run.seal import seal
from nightshift.warehouse.extract import build_plan
from nightshift.warehouse.schema import KEY_TYPES
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun
from tests.integration.emulators import PROJECT, StorageEmulator
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


def test_every_key_type_has_a_value_here() -> None:
    assert set(VALUES) == KEY_TYPES


def test_keys_come_out_as_they_went_in(
    night: Night, storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rows, the last two with the same keys: a key need not be one. The third has no text."""
    name = night.settings.bucket
    keys = [f"k_{kind.lower()}" for kind in VALUES]
    columns = ", ".join(f"{key} {kind}" for key, kind in zip(keys, VALUES, strict=True))
    night.rows(f"CREATE TABLE `{name}.keyed` ({columns}, text STRING, day DATE)")
    full, null = ", ".join(VALUES.values()), ", ".join(["NULL"] * len(VALUES))
    rows = [f"({values}, '{text}', DATE '{PARTITION}')" for values, text in ((null, "a"), (null, ""), (full, "b"), (full, "c"))]
    night.rows(f"INSERT INTO `{name}.keyed` VALUES {', '.join(rows)}")
    source = {"query": f"SELECT * FROM `{name}.keyed` WHERE day = @partition", "key": tuple(keys)}
    tolerant = night.spec.dead_letters.model_copy(update={"tolerate": 1})
    source_now = night.spec.source.model_copy(update=source)
    night.spec = night.spec.model_copy(update={"source": source_now, "dead_letters": tolerant})

    run = opening.open_run(night.store, night.spec, PARTITION, opened_by="test")
    night.succeed(night.warehouse.start_extract(night.spec, run, PARTITION))
    plan = build_plan(night.store, run, night.spec)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    with CannedEngine() as engine:
        driver = DriverProcess(PreparedRun(f"gs://{name}", run, night.spec, plan), engine.url)
        assert driver.finish() == exits.DONE, driver.log
    night.publish(run, seal(night.store, run, night.spec, plan))

    def shown(table: str, condition: str) -> list[str]:
        found = night.rows(f"SELECT {', '.join(keys)} FROM `{name}.{table}` WHERE {condition}")
        return sorted(map(repr, found))

    assert shown("vectors", "TRUE") == shown("keyed", "text != ''")
    assert len(shown("vectors", "TRUE")) == 3
    ((key, reason),) = night.rows(f"SELECT key, reason FROM `{PROJECT}.{night.settings.dataset}.dead_letters`")
    assert json.loads(key) == dict.fromkeys(keys)
    assert reason == "bad_input"
