"""An installation that something else has started, for instance Docker Compose."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit


class Given:
    """What the demo asks of a `local.stack.Stack`. address: Airflow's, with user and password."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        host = parts.hostname or ""
        self._airflow = {
            "url": f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "") + parts.path,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
        }

    def airflow(self) -> dict[str, str]:
        """Airflow's url, user and password."""
        return self._airflow

    def environment(self) -> dict[str, str]:
        """The variables of its clients: this process has them."""
        return dict(os.environ)
