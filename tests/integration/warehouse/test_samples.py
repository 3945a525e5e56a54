"""Some rows of a job's query, from the BigQuery emulator, kept in the bucket for the next preview."""

from __future__ import annotations

import pytest

from nightshift.trial.rows import NoRows, kept_rows, read_rows
from nightshift.warehouse import WarehouseError
from nightshift.warehouse.samples import Samples
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import PARTITION, TEXTS, Night

pytestmark = [pytest.mark.integration, pytest.mark.gate]


def samples(night: Night) -> Samples:
    return Samples(night.client, night.settings)


def test_some_rows_are_always_the_same_ones_whole_and_with_the_count_of_all(night: Night) -> None:
    total, table = samples(night).some_rows(night.spec, PARTITION, 3)
    again = samples(night).some_rows(night.spec, PARTITION, 3)[1]
    _, everything = samples(night).some_rows(night.spec, PARTITION, 100)

    assert (total, len(table), len(everything)) == (len(TEXTS), 3, len(TEXTS))
    assert table.equals(again)
    assert table.to_pylist() == everything.to_pylist()[:3]
    found = dict(zip(everything["name"].to_pylist(), everything["text"].to_pylist(), strict=True))
    assert found == TEXTS


def test_the_rows_are_kept_with_their_types_and_a_partition_without_any_is_said(night: Night) -> None:
    source = samples(night)
    first = read_rows(night.store, source, night.spec, PARTITION, 3, PROJECT, 7)

    kept = kept_rows(night.store, night.spec, PARTITION, 3, PROJECT)

    assert kept is not None
    assert kept.table.equals(first.table)
    assert (kept.of_night, kept.query_bytes, kept.kept, first.kept) == (len(TEXTS), 7, True, False)
    assert kept_rows(night.store, night.spec, PARTITION, 4, PROJECT) is None
    with pytest.raises(NoRows, match="no rows for 2020-01-01"):
        read_rows(night.store, source, night.spec, "2020-01-01", 3, PROJECT, None)


def test_a_column_that_the_query_lacks_is_said_before_anything_is_read(night: Night) -> None:
    spec = night.spec.model_copy(update={"source": night.spec.source.model_copy(update={"key": ("nome",)})})

    with pytest.raises(WarehouseError, match="did you mean name"):
        samples(night).query_bytes(spec, PARTITION)
