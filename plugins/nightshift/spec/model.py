"""The job a user writes, as pydantic models: a class for each mapping of the YAML. `JobSpec` is the whole file.

Only single values are checked here, so a frozen spec is reloaded without parsing SQL or templates; `nightshift.spec.job_checks`
checks values against each other. Descriptions and examples go into the JSON schema,
and examples into messages too.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializeAsAny,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from nightshift.fields.section import ColumnName, Duration, Listed, Section, Text, enum, pattern
from nightshift.fields.values import COLUMN_PATTERN, duration_seconds
from nightshift.profiles import Span, WorkerShape, fit, misfits
from nightshift.spec import cron, values
from nightshift.spec.engine import Engine
from nightshift.spec.engine_defaults import NO_HINTS, Defaults, Hints, Version, Wanted, defaults_of
from nightshift.spec.limits import ENGINES_MAX, SPEED_LEAST, SPEED_MOST, WORKERS_MAX
from nightshift.spec.notify import Notify
from nightshift.spec.periods import Every
from nightshift.spec.profile_names import known, profile_of
from nightshift.tasks import TASK_KINDS, Rendering, TaskRequest, request_model

JobName = Annotated[str, AfterValidator(values.job_name), pattern(values.JOB_PATTERN)]
Label = Annotated[str, AfterValidator(values.label), pattern(values.LABEL_PATTERN)]
ObjectName = Annotated[str, AfterValidator(values.object_name), pattern(values.OBJECT_PATTERN)]
TableName = Annotated[str, AfterValidator(values.table_name), pattern(values.TABLE_PATTERN)]
FolderUrl = Annotated[str, AfterValidator(values.folder_url), pattern(values.FOLDER_URL_PATTERN)]
ModelUri = Annotated[str, AfterValidator(values.model_uri), pattern(values.URI_PATTERN)]
Tolerance = Annotated[
    int | str,
    BeforeValidator(values.tolerance),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": values.SHARE_PATTERN}]}),
]
RowOrder = Annotated[
    str | tuple[str, ...],
    BeforeValidator(values.order),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": list(values.ORDERS)},
                {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": COLUMN_PATTERN}},
            ]
        }
    ),
]
ProfileName = Annotated[Text, Field(json_schema_extra=lambda schema: schema.update(enum=[*known()]))]
"""Whether there is such a profile is asked of a job file alone (`nightshift.spec.engine_checks`)."""

ROWS_MAX: Final = 1_000_000
SETTLE: Final = "1m"
"""How long after its end a period of files is checked, unless the job states another time."""


class Source(Section):
    """Where the rows come from."""

    OPERATIONAL: ClassVar = ("watch", "settle", "empty", "rows_min", "unique", "order")
    """Which periods have a run, whether a run begins, and, the last one, how fast it is."""

    query: Text = Field(
        description="One SELECT in BigQuery's SQL. It must use @partition, the date of the run; with every, the start of its "
        "period, a TIMESTAMP, and may use @partition_end.",
        examples=["SELECT name, version, summary FROM `catalog.packages` WHERE snapshot_date = @partition"],
    )
    key: Annotated[Listed[ColumnName], AfterValidator(values.key_columns)] = Field(
        description="Columns of the query that say which row it is. They are copied to the destination.",
        examples=[["name", "version"]],
        json_schema_extra={"minItems": 1},
    )
    pass_through: Annotated[Listed[ColumnName], AfterValidator(values.no_column_twice)] = Field(
        default=(),
        description="More columns of the query that are copied to the destination, beside the key. Another list makes another "
        "run: the columns are in its chunks.",
        examples=[["price", "updated_at"]],
    )
    watch: FolderUrl | None = Field(
        default=None,
        description="With every: a folder on Cloud Storage. A period has a run only if objects appeared there in it. "
        "By default every period has one.",
        examples=["gs://shop-uploads/texts"],
    )
    settle: Duration | None = Field(
        default=None,
        description="With watch: how long after its time a row may be in an object; a period is checked that long after its "
        f"end. By default {SETTLE}.",
        examples=["2m"],
    )
    empty: Literal["publish", "fail"] | None = Field(
        default=None,
        description="What becomes of a run whose query has no rows: it publishes an empty partition, or fails in the task "
        "plan. By default it publishes, with a warning.",
        examples=["fail"],
    )
    rows_min: int | None = Field(
        default=None,
        ge=1,
        description="The fewest rows of a run that has some: with fewer, it fails in the task plan. Of none, empty decides.",
        examples=[1000],
    )
    unique: bool | None = Field(
        default=None,
        description="Whether the task plan counts the keys, and fails if one stands in several rows. That scans their columns.",
        examples=[True],
    )
    order: RowOrder = Field(
        default="auto",
        description="By which columns the rows are sorted before they are computed, so that rows whose prompts begin alike are "
        "neighbours: a list of columns of the query, none, or auto: if it pays.",
        examples=[["category", "product"]],
    )

    @property
    def carried(self) -> tuple[str, ...]:
        """The columns that go from the query through the chunks to the destination, the key's first."""
        return (*self.key, *self.pass_through)


class Model(Section):
    """The model, fixed to a revision."""

    name: Label = Field(description="The name under which the server offers the model.", examples=["all-minilm-l6-v2"])
    uri: ModelUri = Field(
        description="Where the weights are: hf://ORGANISATION/NAME or gs://BUCKET/FOLDER.",
        examples=["hf://sentence-transformers/all-MiniLM-L6-v2"],
    )
    revision: Annotated[str, AfterValidator(values.revision)] = Field(
        description="Commit of the weights, 40 hex digits; or a tag or branch, which may move. Another one makes another run.",
        examples=["1110a243fdf4706b3f48f1d95db1a4f5529b4d41"],
    )

    @property
    def root(self) -> str:
        """As vLLM's ``--model`` names it, where its bucket is not mounted."""
        return self.uri.removeprefix("hf://")


class Destination(Section):
    """Where the predictions go."""

    table: TableName = Field(
        description="dataset.table or project.dataset.table; created if it does not exist.",
        examples=["catalog.package_embeddings"],
    )
    column: ColumnName = Field(description="The column that holds the prediction.", examples=["embedding"])
    partition_column: ColumnName = Field(
        default=values.PARTITION_COLUMN,
        description="The DATE column that publishing adds and that the table is partitioned by; with every, a TIMESTAMP.",
        examples=["snapshot_date"],
    )


class DeadLetters(Section):
    """Rows that cannot be answered."""

    tolerate: Tolerance = Field(
        default=0,
        description="How many dead letters a run may have: rows, or a share of them. With more, nothing is published.",
        examples=["1%"],
    )

    def allowed(self, rows: int) -> int:
        """How many of `rows` rows may be dead letters; a share is rounded down."""
        if isinstance(self.tolerate, int):
            return self.tolerate
        return math.floor(rows * Fraction(self.tolerate.removesuffix("%")) / 100)


class Machine(Section):
    """What one engine runs on. None of it affects answers."""

    profile: ProfileName = Field(
        description="The kind of worker: its accelerator, and how the machine is bought.", examples=["gpu-l4-spot"]
    )
    tensor_parallel: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="How many accelerators share each layer of the model; by default one GPU or the whole TPU slice.",
        examples=[4],
    )
    pipeline_parallel: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Into how many pipeline stages the model's layers are divided; by default one for each host.",
        examples=[2],
    )
    hosts: int | None = Field(
        default=None, ge=1, le=64, description="How many machines of 8 GPUs one engine spans; by default 1.", examples=[2]
    )
    topology: Text | None = Field(
        default=None, description="The TPU slice of one engine: 2x4 is one host, 4x4 four hosts of 4 chips.", examples=["4x4"]
    )
    weights_gib: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Size of the model's files in GiB, for the disk; by default the size found when the run is opened.",
        examples=[16],
    )

    def worker(self, profile: str | None = None) -> WorkerShape:
        """One engine's machines, on its own profile or on another. Raises ValueError if the profile does not allow it."""
        return fit(profile_of(profile or self.profile), self.span)

    @property
    def span(self) -> Span:
        return Span(self.topology, self.hosts, self.tensor_parallel, self.pipeline_parallel)


class Compute(Machine):
    """What the job runs on. None of it affects answers, so if you change it, the run stays the same."""

    engines: int | None = Field(
        default=None,
        ge=1,
        le=ENGINES_MAX,
        description="How many engines, each with the whole model, share a worker's one GPU; by default 1.",
        examples=[2],
    )
    fallback: Listed[ProfileName] | None = Field(
        default=None,
        description="The profiles to try when this one gets no capacity; by default the profile's own, [] for none.",
        examples=[["gpu-l4-flex", "gpu-l4"]],
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        le=WORKERS_MAX,
        description="How many workers; by default planned from rows and deadline.",
        examples=[2],
    )
    rows_per_worker_per_second: float | None = Field(
        default=None,
        ge=SPEED_LEAST,
        le=SPEED_MOST,
        description="One worker's speed, for the planner; by default recorded or estimated.",
        examples=[20],
    )

    @property
    def span(self) -> Span:
        return replace(super().span, engines=self.engines)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The profiles to try after the job's own, in this order: as stated, else those of its profile that its worker fits."""
        if self.fallback is not None:
            return self.fallback
        span = self.span
        return tuple(name for name in profile_of(self.profile).fallbacks if not any(misfits(profile_of(name), span)))

    @property
    def profiles(self) -> tuple[str, ...]:
        """Every profile that a worker of the job may get, the job's own first."""
        return (self.profile, *self.fallbacks)


class Work(Section):
    """What a nightly job and a stream have in common: a model that is asked something for each row. NOUN: for messages."""

    NOUN: ClassVar[str]
    OFFLINE: ClassVar = False
    """Whether nobody waits for an answer, so that the engine is set up for throughput."""

    job: JobName = Field(
        description="Name of the DAG, the run's folder and the Kubernetes objects: lower-case letters, digits, dashes.",
        examples=["package-embeddings"],
    )
    description: Text | None = Field(
        default=None, description="What the job is for; shown on the DAG's page.", examples=["One vector per package."]
    )
    owner: Annotated[str, AfterValidator(values.one_line)] = Field(
        description="The team or person responsible for the job.", examples=["search-team"]
    )
    tags: Listed[Label] = Field(default=(), description="Labels to find the DAG by.", examples=[["embeddings"]])
    task: Annotated[str, AfterValidator(values.task_kind), enum(*TASK_KINDS)] = Field(
        description="What kind of prediction is made.", examples=["embedding"]
    )
    request: SerializeAsAny[TaskRequest] = Field(
        description="What the model is asked for each row; the keys depend on the task."
    )
    model: Model
    engine: Engine = Field(examples=[{"max_model_len": 256}])
    if TYPE_CHECKING:
        compute: Machine

    _rendering: Rendering = PrivateAttr(default=Rendering.SQL)

    @property
    def rendering(self) -> Rendering:
        """How values read in prompts: what a run was opened with, and whether a NULL may stand in one."""
        return Rendering.NO_NULL if self.request.nulls == "dead_letter" else self._rendering

    def rendered_as(self, rendering: Rendering) -> Self:
        """The same work for a run that was opened with another rendering."""
        changed = self.model_copy()
        changed._rendering = rendering
        return changed

    @property
    def rows_per_request(self) -> int:
        """The most rows that share a request: 1 if the task kind's endpoint takes no lists."""
        return self.request.rows_most(self.seats())

    def seats(self, worker: WorkerShape | None = None) -> int:
        """How many rows an engine computes at once: as stated, else the worker's default. worker: by default its own."""
        return self.engine.max_num_seqs or self.defaults(worker).seats

    def defaults(self, worker: WorkerShape | None = None, version: Version | None = None, hints: Hints = NO_HINTS) -> Defaults:
        """With what an engine starts where the file says nothing. version: of vLLM, if it is known."""
        try:
            shape = worker or self.compute.worker()
        except ValueError:  # A profile of another deployment, for one who only reads what a run was.
            shape = None
        engine = self.engine
        wanted = Wanted(self.task, engine.max_num_seqs, engine.max_model_len, engine.flags, self.OFFLINE)
        return defaults_of(wanted, shape, version, hints)

    @field_validator("request", mode="before")
    @classmethod
    def _by_task(cls, value: object, info: ValidationInfo) -> object:
        """The keys of ``request`` are those of the task; they cannot be checked if the task is unknown."""
        task = info.data.get("task")
        if isinstance(value, dict):
            return request_model(task).model_validate(value) if task else TaskRequest()
        return value


class JobSpec(Work):
    """One nightly job: a query's rows, turned into predictions by a model, published to a table."""

    NOUN: ClassVar = "job"
    OFFLINE: ClassVar = True
    OPERATIONAL: ClassVar = (
        "job",
        "description",
        "owner",
        "tags",
        "schedule",
        "start_date",
        "destination",
        "dead_letters",
        "deadline",
        "compute",
        "queue",
        "priority",
        "chunk_rows",
        "notify",
    )

    schedule: Annotated[str, AfterValidator(cron.schedule)] | None = Field(
        default=None,
        description="When it runs, as cron: minute, hour, day, month, weekday. null: only on request.",
        examples=["0 2 * * *"],
    )
    every: Every | None = Field(
        default=None,
        description="Instead of schedule: a run for each period of this length, which begins when the period is over.",
        examples=["10m"],
    )
    start_date: Annotated[datetime.date, BeforeValidator(values.day)] = Field(
        description="The first partition.", examples=["2026-11-01"]
    )
    source: Source
    destination: Destination
    dead_letters: DeadLetters = Field(default=DeadLetters())
    deadline: Duration = Field(
        description="How long the inference of a run may take, start of the workers included: 45m, 3h, 1d.", examples=["3h"]
    )
    compute: Compute
    queue: ObjectName | None = Field(default=None, description="The Kueue LocalQueue to wait in.", examples=["nightly"])
    priority: ObjectName | None = Field(default=None, description="The Kueue WorkloadPriorityClass.", examples=["nightly-low"])
    chunk_rows: int | None = Field(
        default=None, ge=1, le=ROWS_MAX, description="Rows that are committed together; by default planned.", examples=[1024]
    )

    notify: Notify | None = Field(
        default=None,
        description="Which of the deployment's notifiers to tell when a run fails, is late, or has too many dead letters.",
    )

    @property
    def summary(self) -> str:
        """Where its predictions go, in words."""
        return f"into {self.destination.table} within {self.deadline}"

    @property
    def deadline_seconds(self) -> int:
        return duration_seconds(self.deadline)

    def under_terms_of(self, job: JobSpec) -> JobSpec:
        """This spec with everything from `job` that does not affect answers, such as destination, tolerance, max_num_seqs."""
        sections: dict[str, tuple[Section, Section]] = {
            "source": (self.source, job.source),
            "engine": (self.engine, job.engine),
            "request": (self.request, job.request),
        }
        tuned = {name: frozen.tuned(dict(now)) for name, (frozen, now) in sections.items()}
        return self.tuned(dict(job)).model_copy(update=tuned)

    def tuning(self, worker: WorkerShape | None = None) -> dict[str, dict[str, Any]]:
        """What a driver must know of the job as it is now: how large its requests are, and how long they may take. JSON.

        worker: on which its engine computes, by default the job's own.
        """
        parts: dict[str, Section] = {"engine": self.engine, "request": self.request}
        found = {name: part.model_dump(mode="json", include=set(part.OPERATIONAL)) for name, part in parts.items()}
        found["engine"]["max_num_seqs"] = self.seats(worker)
        return found

    def with_tuning(self, values: Mapping[str, Mapping[str, Any]]) -> JobSpec:
        """This spec with the values of another's `tuning`; others are passed over. Raises ValueError if one is not valid."""
        body = self.model_dump(mode="json")
        for name, part in (("engine", self.engine), ("request", self.request)):
            body[name] |= {key: value for key, value in values.get(name, {}).items() if key in part.OPERATIONAL}
        return type(self).model_validate(body)
