"""Whether a BigQuery job of a dataset may read and write in a bucket, by Google's "BigQuery locations". Pure.

- EXPORT DATA needs dataset and bucket in one location ("Export table data to Cloud Storage"); a load from elsewhere costs a
  transfer. A dual-region bucket is in both of its regions.
- The multi-regions ``EU`` and ``US`` lie with ``europe-west4`` and ``us-central1``: a bucket there, or in a dual-region with
  it, is in the same location. One in another region of the same multi-region works, and costs a transfer between regions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_HOME: Final = {"EU": "EUROPE-WEST4", "US": "US-CENTRAL1"}
_INSIDE: Final = {"EU": "EUROPE-", "US": "US-"}
"""How the names of the regions of a multi-region begin."""
_NOT_EU: Final = ("EUROPE-WEST2", "EUROPE-WEST6")
"""London and Zurich ("Bucket locations": EU is the data centers within member states)."""
_DUAL: Final = {
    "ASIA1": ("ASIA-NORTHEAST1", "ASIA-NORTHEAST2"),
    "EUR4": ("EUROPE-NORTH1", "EUROPE-WEST4"),
    "EUR5": ("EUROPE-WEST1", "EUROPE-WEST2"),
    "NAM4": ("US-CENTRAL1", "US-EAST1"),
}
"""Predefined dual-regions ("Bucket locations"); the configurable ones say their regions themselves."""


@dataclass(frozen=True)
class Bucket:
    """location: as Cloud Storage shows it, in capitals. regions: of a dual-region; else empty."""

    location: str
    regions: tuple[str, ...] = ()

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Bucket:
        """From ``buckets.get``."""
        location = str(document["location"]).upper()
        placed = document.get("customPlacementConfig", {}).get("dataLocations", ())
        return cls(location, tuple(str(each).upper() for each in placed) or _DUAL.get(location, ()))


def is_in(bucket: Bucket, dataset: str) -> bool:
    """Whether jobs of the dataset's location reach the bucket without a transfer between locations."""
    home = dataset.upper()
    return bucket.location == home or not {home, _HOME.get(home, home)}.isdisjoint((bucket.location, *bucket.regions))


def is_charged(bucket: Bucket, dataset: str) -> bool:
    """Whether they reach it, for the price of a transfer: a region inside the dataset's multi-region."""
    begins = _INSIDE.get(dataset.upper())
    regions = bucket.regions or (bucket.location,)
    return begins is not None and all(each.startswith(begins) and each not in _NOT_EU for each in regions)
