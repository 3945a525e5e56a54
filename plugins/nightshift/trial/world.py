"""What trials of rows need of a deployment. Commands and tasks bring it (`cli/engine_work`, `operators/engine_work`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nightshift.planner.inputs import known_of
from nightshift.run.pins import UNPINNED

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import GCSCredentialProvider, ObjectStore

    from nightshift.jobset.runtime import Runtime
    from nightshift.planner.costs.prices import Prices
    from nightshift.planner.speed import Known
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec


class Source(Protocol):
    """What is asked of the warehouse: `nightshift.warehouse.samples.Samples`."""

    def query_bytes(self, spec: JobSpec, partition: str) -> int | None:
        """Bytes that the query reads, by a dry run; None if it does not say. Raises as `check_query` does."""
        ...

    def some_rows(self, spec: JobSpec, partition: str, rows: int) -> tuple[int, pa.Table]:
        """How many rows the query has, and some of them, always the same ones. Reads as much as the query does."""
        ...


@dataclass(frozen=True)
class World:
    """warehouse(job, step), runtime(): only called when needed: each may take seconds to reach. say(sentence): while a person
    waits."""

    store: ObjectStore
    settings: Settings
    warehouse: Callable[..., Source]
    runtime: Callable[[], Runtime]
    prices: Prices
    environment: Mapping[str, str]
    say: Callable[[str], None]
    credentials: GCSCredentialProvider | None = None

    def known(self, spec: JobSpec, **given: Any) -> Known:
        """What the planner knows of a job that no run has pinned. given: as `nightshift.planner.inputs.known_of` takes it."""
        credentials = self.credentials if spec.model.uri.startswith("gs://") else None
        return known_of(spec, UNPINNED, environment=self.environment, credentials=credentials, **given)
