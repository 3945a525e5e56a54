"""BigQuery's rule of locations: which buckets a dataset's jobs reach, and for which of them Google charges."""

from __future__ import annotations

import pytest

from nightshift.doctor import warehouse
from nightshift.doctor.colocation import Bucket, is_charged, is_in
from nightshift.doctor.findings import Failed, Ok
from tests.unit.doctor.fakes import FakeConnections, FakeTrial, google, here, only

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("bucket", "dataset", "verdict"),
    [
        ("EU", "EU", "in"),
        ("EUROPE-WEST4", "europe-west4", "in"),
        ("EUROPE-WEST4", "EU", "in"),
        ("EUR4", "EU", "in"),
        ("EUR4", "europe-north1", "in"),
        ("EUROPE-WEST1", "EU", "charged"),
        ("EUROPE-WEST2", "EU", "no"),  # London is not in the European Union
        ("EUROPE-WEST6", "EU", "no"),  # nor is Zurich
        ("EUR5", "EU", "no"),  # half of it is London
        ("US-CENTRAL1", "US", "in"),
        ("NAM4", "US", "in"),
        ("NAM4", "us-central1", "in"),
        ("US-WEST1", "US", "charged"),
        ("NORTHAMERICA-NORTHEAST1", "US", "no"),
        ("US", "EU", "no"),
        ("EUROPE-WEST4", "US", "no"),
        ("EU", "europe-west4", "no"),
        ("EUROPE-WEST4", "europe-west1", "no"),
        ("ASIA1", "asia-northeast1", "in"),
        ("ASIA", "asia-northeast1", "no"),
    ],
)
def test_the_rule(bucket: str, dataset: str, verdict: str) -> None:
    placed = Bucket.of({"location": bucket})

    assert is_in(placed, dataset) == (verdict == "in")
    if verdict != "in":
        assert is_charged(placed, dataset) == (verdict == "charged")


def test_a_configurable_dual_region_says_its_regions() -> None:
    placed = Bucket.of({"location": "EU", "customPlacementConfig": {"dataLocations": ["EUROPE-WEST1", "EUROPE-WEST4"]}})

    assert is_in(placed, "europe-west1")
    assert is_in(placed, "EU")
    assert not is_in(placed, "europe-west3")


@pytest.mark.parametrize(
    ("bucket", "dataset", "setting", "expected"),
    [
        ("EUROPE-WEST4", "EU", "EU", Ok("location", "bucket EUROPE-WEST4, dataset and NIGHTSHIFT_LOCATION EU")),
        (
            "EUROPE-WEST1",
            "EU",
            "EU",
            Ok(
                "location",
                "gs://runs is in EUROPE-WEST1, acme.nightshift is in EU: BigQuery reads and writes there, and the transfer "
                "between regions is charged",
            ),
        ),
    ],
)
def test_a_bucket_inside_the_datasets_multi_region_is_no_fault(bucket: str, dataset: str, setting: str, expected: Ok) -> None:
    connections = FakeConnections(account=google(bucket=(200, {"location": bucket})), bigquery=FakeTrial(where=dataset))

    assert only(warehouse.location, here(connections, location=setting)) == expected


def test_a_setting_that_is_not_the_datasets_is_one_even_if_the_bucket_is_near() -> None:
    """A job runs in the location that it is given, and finds no dataset there."""
    connections = FakeConnections(account=google(bucket=(200, {"location": "EUROPE-WEST4"})), bigquery=FakeTrial(where="EU"))

    found = only(warehouse.location, here(connections, location="europe-west4"))

    assert isinstance(found, Failed)
    assert "NIGHTSHIFT_LOCATION=EU" in found.fix
