"""The stream that a user writes: a job whose rows are messages and whose predictions go to a database or files as they come.

`StreamSpec` is the whole file; `nightshift.spec.stream_checks` checks its values against each other.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from nightshift.fields.mistakes import nearest
from nightshift.fields.section import ColumnName, Duration, InputColumn, Listed, Moment, SchemaText, Section, Text
from nightshift.fields.values import duration_seconds, moment_seconds
from nightshift.spec import values
from nightshift.spec.limits import SPEED_LEAST, SPEED_MOST
from nightshift.spec.model import FolderUrl, Machine, Work
from nightshift.spec.sinks import Sink, sink_model

Subscription = Annotated[str, AfterValidator(values.subscription)]
Topic = Annotated[str, AfterValidator(values.topic)]

TEXT_COLUMN: Final = "text"
"""Of a message whose format is text: its data."""
MESSAGE_ID: Final = "message_id"
PUBLISH_TIME: Final = "publish_time"
ORDERING_KEY: Final = "ordering_key"
MESSAGE_COLUMNS: Final = (MESSAGE_ID, PUBLISH_TIME, ORDERING_KEY)
"""What every message has besides its data and attributes."""


class Messages(Section):
    """Where the rows come from: a Pub/Sub subscription, each of whose messages is one row."""

    subscription: Subscription = Field(
        description="The subscription to pull from: its name, or projects/PROJECT/subscriptions/NAME.",
        examples=["package-texts"],
    )
    format: Literal["json", "avro", "text"] = Field(
        default="json",
        description="What the data of a message is: a JSON object, a record in Avro, or text in UTF-8 (the column text).",
        examples=["json"],
    )
    avro_schema: SchemaText | None = Field(
        default=None,
        description="The Avro schema that messages were written with: a record.",
        examples=[{"type": "record", "name": "Package", "fields": [{"name": "summary", "type": "string"}]}],
    )
    avro_revisions: Listed[Text] = Field(
        default=(),
        description="Ids of the revisions of the topic's schema that are read as avro_schema. Messages of others are held.",
        examples=[["8d1f2a3b"]],
    )
    attributes: Listed[InputColumn] = Field(default=(), description="Attributes that are columns, too.", examples=[["tenant"]])
    optional: Listed[InputColumn] = Field(
        default=(),
        description="Columns and attributes that a message may lack: they read as NULL. Without another it is a dead letter.",
        examples=[["description"]],
    )
    key: Listed[ColumnName] = Field(
        default=(),
        description="Columns that tell one row of the sink from another; of messages with the same key the newest one counts. "
        "By default the message's id, so that every message has its own row.",
        examples=[["name", "version"]],
    )
    ordering: bool = Field(
        default=False,
        description="Whether messages of one ordering key are answered one after the other. Each message then needs a key.",
        examples=[True],
    )
    ordering_keys: Listed[Text] | None = Field(
        default=None,
        description="The ordering keys that may occur; * stands for any characters. By default any.",
        examples=[["tenant-*"]],
    )

    @property
    def place(self) -> str:
        """Where the rows come from, in words."""
        return self.subscription

    @property
    def project(self) -> str | None:
        """The project that the subscription's name states; None for a name alone."""
        return self.subscription.split("/")[1] if "/" in self.subscription else None

    @property
    def short_name(self) -> str:
        """The subscription's name without its project."""
        return self.subscription.rpartition("/")[2]

    @property
    def origin(self) -> tuple[str, str]:
        """What kind of source it is, and its name."""
        return "subscription", self.subscription


class Watched(Section):
    """Where the rows come from: a folder on Cloud Storage, each of whose objects has rows."""

    prefix: FolderUrl = Field(
        description="The folder that is watched: gs://BUCKET/FOLDER. Names that begin with _ or . are ignored.",
        examples=["gs://catalog-incoming/texts"],
    )
    format: Literal["json", "text", "parquet", "avro"] = Field(
        default="json",
        description="What an object is: lines that are JSON objects, lines of text in UTF-8 (the column text), Parquet, or an "
        "Avro object container file.",
        examples=["json"],
    )
    every: Moment = Field(default="10s", description="How often the folder is listed.", examples=["10s"])
    optional: Listed[InputColumn] = Field(
        default=(),
        description="Columns that a row may lack: they read as NULL. Without another it is a dead letter.",
        examples=[["description"]],
    )
    key: Listed[ColumnName] = Field(
        default=(),
        description="Columns that tell one row of the sink from another; of rows with the same key that of the newest object "
        "counts. By default every row has its own.",
        examples=[["name", "version"]],
    )

    @property
    def place(self) -> str:
        """Where the rows come from, in words."""
        return self.prefix

    @property
    def origin(self) -> tuple[str, str]:
        """What kind of source it is, and its name."""
        return "prefix", self.prefix

    @property
    def every_seconds(self) -> float:
        return moment_seconds(self.every)


def source_model(value: object) -> type[Messages] | type[Watched]:
    """What a section `source` is to be read as, by its keys: one of them may be misspelt."""
    if not isinstance(value, dict) or ("subscription" in value and "prefix" not in value):
        return Messages
    return Watched if any(nearest(str(key), ["prefix"]) for key in value) else Messages


class Latency(Section):
    """How long a message may take."""

    target: Duration = Field(
        description="From publishing to the answer in the sink. Replicas are planned from it, and status warns beyond it.",
        examples=["60s"],
    )
    flush: Moment = Field(
        default="2s",
        description="How long a message may wait for others of its request, while the engine computes: 500ms, 2s.",
        examples=["2s"],
    )

    @property
    def target_seconds(self) -> int:
        return duration_seconds(self.target)

    @property
    def flush_seconds(self) -> float:
        return moment_seconds(self.flush)


class DeadLetterTopic(Section):
    """Messages that cannot be answered."""

    topic: Topic = Field(
        description="The topic that gets them, each with its reason: its name, or projects/PROJECT/topics/NAME.",
        examples=["package-texts-dead"],
    )


class Subscribers(Section):
    """How many processes pull."""

    min: int = Field(default=1, ge=0, le=1000, description="The fewest; 0 needs KEDA.", examples=[1])
    max: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="The most; by default as many as servers.max can answer, and never more.",
        examples=[4],
    )


class Servers(Section):
    """How many engines answer."""

    min: int = Field(default=1, ge=0, le=1000, description="The fewest; 0 needs KEDA.", examples=[1])
    max: int = Field(ge=1, le=1000, description="The most: as many as your quota of accelerators allows.", examples=[4])
    waiting_requests: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Requests that wait in each server (vllm:num_requests_waiting) before another is started; by default a "
        "quarter of engine.max_num_seqs, the least that subscribers keep waiting in a server that is busy.",
        examples=[16],
    )


class Scaling(Section):
    """How many subscribers and servers there are. None of it affects answers."""

    messages_per_second: float = Field(
        ge=SPEED_LEAST,
        le=SPEED_MOST,
        description="Messages that one subscriber gets answered in a second while there is a backlog, as measured.",
        examples=[40],
    )
    subscribers_per_server: int = Field(
        default=1,
        ge=1,
        le=100,
        description="How many subscribers shared each server when messages_per_second was measured.",
        examples=[1],
    )
    subscribers: Subscribers = Field(default=Subscribers())
    servers: Servers

    @property
    def subscribers_max(self) -> int:
        """The most subscribers: what is stated, else as many as the servers can answer."""
        return self.subscribers.max or self.servers.max * self.subscribers_per_server

    @property
    def messages_per_second_max(self) -> float:
        """What all subscribers together get answered, at most."""
        return self.messages_per_second * self.subscribers_max


class StreamSpec(Work):
    """One stream: messages or rows of a folder, turned into predictions by a model, written to a table or to files."""

    NOUN: ClassVar = "stream"

    source: Messages | Watched
    latency: Latency
    sink: Sink
    dead_letters: DeadLetterTopic
    compute: Machine
    scaling: Scaling | None = Field(
        default=None, description="For autoscaling; `nightshift render` needs it, a subscriber does not."
    )

    @property
    def waiting_requests(self) -> int:
        """Requests that wait in each server before another is started.

        Subscribers keep at least a quarter of what is computed waiting (`nightshift.driver.window`), so that much shows a
        server that has no room left. Without `scaling`, the default.
        """
        stated = self.scaling.servers.waiting_requests if self.scaling else None
        return stated or max(1, self.seats() // 4)

    @property
    def summary(self) -> str:
        """Where its messages come from and its predictions go, in words."""
        return f"from {self.source.place} into {self.sink.place} within {self.latency.target}"

    @field_validator("source", "sink", mode="before")
    @classmethod
    def _by_its_keys(cls, value: Any, info: ValidationInfo) -> Any:
        model: type[Section] = source_model(value) if info.field_name == "source" else sink_model(value)
        return model.model_validate(value) if isinstance(value, dict) else value
