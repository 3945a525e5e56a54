"""The runtime that a deployment's settings name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from nightshift.jobset.runtime import Runtime
    from nightshift.settings import Settings


def runtime_for(settings: Settings) -> Runtime:
    """``local:FOLDER`` is the local runtime. Raises AirflowFailException for a runtime that this version does not have."""
    kind, _, folder = settings.runtime.partition(":")
    if kind == "local" and folder:
        from nightshift.jobset.local import LocalRuntime

        return LocalRuntime(Path(folder))
    if settings.runtime == "kubernetes":
        raise AirflowFailException(
            "NIGHTSHIFT_RUNTIME is 'kubernetes', which this version of nightshift cannot submit to yet. "
            "Set it to local:FOLDER, the folder of a local runtime's state."
        )
    raise AirflowFailException(f"NIGHTSHIFT_RUNTIME is {settings.runtime!r}. Write 'kubernetes' or 'local:FOLDER'.")
