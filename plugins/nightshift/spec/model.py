"""The job a user writes, as pydantic models: one class for each mapping of the YAML. `JobSpec` is the file.

Only what one value can tell is judged here, so that a frozen spec is reloaded without parsing SQL or templates;
`nightshift.spec.checks` judges the rest when a file is loaded.
"""

from __future__ import annotations

import datetime
import math
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nightshift.spec import names


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Source(_Part):
    query: str
    key: tuple[str, ...] = Field(strict=False)


class Request(_Part):
    input: str
    overlong: Literal["truncate", "dead_letter"] = "dead_letter"
    rows_per_request: int = Field(default=16, ge=1, le=2048)


class Model(_Part):
    name: str
    uri: str
    revision: str


class Engine(_Part):
    max_num_seqs: int = Field(ge=1, le=4096)
    max_model_len: int | None = Field(default=None, ge=1)
    dtype: str = "auto"
    args: dict[str, bool | int | float | str] = Field(default_factory=dict)


class Destination(_Part):
    table: str
    column: str
    partition_column: str = "partition_date"


class DeadLetters(_Part):
    tolerate: Annotated[int | str, BeforeValidator(names.tolerance)] = 0

    def allowed(self, rows: int) -> int:
        """How many of `rows` rows may be dead letters; a share is rounded down."""
        if isinstance(self.tolerate, int):
            return self.tolerate
        return math.floor(rows * Fraction(self.tolerate.removesuffix("%")) / 100)


class Compute(_Part):
    profile: str
    workers: int | None = Field(default=None, ge=1)
    rows_per_worker_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class JobSpec(_Part):
    job: Annotated[str, AfterValidator(names.job_name)]
    description: str | None = None
    owner: str
    tags: tuple[str, ...] = Field(default=(), strict=False)
    schedule: str | None = None
    start_date: datetime.date = Field(strict=False)
    source: Source
    task: str
    request: Request
    model: Model
    engine: Engine
    destination: Destination
    dead_letters: DeadLetters = DeadLetters()
    deadline: Annotated[str, AfterValidator(names.duration)]
    compute: Compute
    queue: str | None = None
    priority: str | None = None
    chunk_rows: int | None = Field(default=None, ge=1)

    @property
    def deadline_seconds(self) -> int:
        return names.duration_seconds(self.deadline)

    def semantic(self) -> dict[str, Any]:
        """The JSON form of what decides answers; `nightshift.run.run_digest` hashes it."""
        return self.model_dump(
            mode="json",
            include={"source": True, "task": True, "request": {"input", "overlong"}, "model": True, "engine": True},
        )
