"""Objects of the cluster's API, read as Airflow's account; what it may read there is k8s/components/doctor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import NotKnown
from nightshift.jobset.runtime import JobSetNotFound, RequestRefused

READER: Final = "k8s/components/doctor/reader.yaml"
Object = Mapping[str, Any]
T = TypeVar("T")


def get(here: Surroundings, path: str) -> Object | None:
    """The object, or the discovery document, at a path; None if there is none. Raises NotKnown if it may not be read."""
    return _asked(lambda: here.cluster.read(path))


def listed(here: Surroundings, path: str, selector: str = "") -> list[dict[str, Any]] | None:
    """All objects of a list; None if the cluster does not serve the kind. Raises NotKnown if they may not be read."""
    return _asked(lambda: here.cluster.read_all(path, selector))


def _asked(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except JobSetNotFound:
        return None
    except RequestRefused as error:
        raise NotKnown(f"{error} To allow it: kubectl apply -f {READER}") from None


def condition(found: Object, kind: str) -> Object | None:
    """A condition of its status, by type."""
    conditions = found.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), None)


def words(found: Object) -> str:
    """Reason and message of a condition."""
    return ": ".join(filter(None, (found.get("reason", ""), found.get("message", "")))) or "no reason is given"
