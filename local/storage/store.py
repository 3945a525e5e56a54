"""All state of the emulator, opened from one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from local.storage.bodies import Bodies
from local.storage.catalog import Catalog
from local.storage.database import Database
from local.storage.policies import Policies
from local.storage.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Store:
    catalog: Catalog
    bodies: Bodies
    sessions: Sessions
    policies: Policies


def open_state(folder: Path) -> Store:
    """Opens or creates the state in ``folder`` and removes what a killed process left. Raises DataDirError."""
    folder.mkdir(parents=True, exist_ok=True)
    database = Database(folder)
    bodies = Bodies(folder / "bodies")
    catalog = Catalog(database, bodies)
    sessions = Sessions(database, bodies, catalog)
    sessions.expire()
    rows = database.execute("SELECT file FROM objects UNION ALL SELECT file FROM sessions UNION ALL SELECT file FROM parts")
    bodies.sweep({file for (file,) in rows})
    return Store(catalog, bodies, sessions, Policies(database))
