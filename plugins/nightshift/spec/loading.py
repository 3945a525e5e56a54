"""From a file to a `JobSpec`."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from nightshift.spec.errors import SpecError, SpecErrors
from nightshift.spec.model import JobSpec


def load(path: str | Path) -> JobSpec:
    """Raises SpecErrors with every mistake of the file."""
    file = Path(path)
    try:
        return JobSpec.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise SpecErrors(
            SpecError(file, 1, ".".join(map(str, item["loc"])), item["msg"], "Mend it") for item in error.errors()
        ) from None
