"""What task kinds have in common in the section ``request:`` of a job file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from nightshift.fields.mistakes import Finding
from nightshift.fields.section import Duration, Section
from nightshift.fields.values import duration_seconds

Overlong = Literal["truncate", "dead_letter"]


ANSWER_BYTES: Final = 1024
"""Of an answer that is a few numbers and names."""


class TaskRequest(Section):
    """The section ``request:`` of every task kind; each kind adds what it needs in a subclass.

    TEMPLATES: the fields that are Jinja2 templates over the query's columns. COLUMNS: the fields that name one column, each
    with the prefixes of the GoogleSQL types that it may have.
    LEADING: the templates that a prompt begins with, in its order, if the engine computes a common beginning of prompts once.
    OPERATIONAL: the fields that do not affect answers: if you change them, the run stays the same.
    PAIRS: whether a prompt is made of two texts, so that cutting it may take one of them away.
    ONE_WIDTH: whether all predictions of a run are lists of the same length.
    SIZED_BY: the field that states how large an answer may be, if there is one.
    """

    TEMPLATES: ClassVar[tuple[str, ...]] = ()
    COLUMNS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    LEADING: ClassVar[tuple[str, ...]] = ()
    OPERATIONAL: ClassVar[tuple[str, ...]] = ("timeout", "rows_per_request")
    PAIRS: ClassVar[bool] = False
    ONE_WIDTH: ClassVar[bool] = False
    SIZED_BY: ClassVar[str | None] = None

    timeout: Duration = Field(
        default="10m",
        description="How long one request may take before it is sent again: 90s, 10m, 1h.",
        examples=["10m"],
    )

    nulls: Literal["empty", "dead_letter"] | None = Field(
        default=None,
        description="What becomes of a row whose NULL a template would write: the NULL reads as empty text, or the row is a "
        "dead letter. By default empty, with a warning before the run.",
        examples=["dead_letter"],
    )

    def _semantic(self) -> Iterator[tuple[str, Any]]:
        """The key may say what is so without it."""
        return ((name, value) for name, value in super()._semantic() if (name, value) != ("nulls", "empty"))

    @property
    def timeout_seconds(self) -> int:
        return duration_seconds(self.timeout)

    @property
    def truncates(self) -> bool:
        """Whether a text longer than the model allows is cut."""
        return getattr(self, "overlong", None) == "truncate"

    @property
    def seeded(self) -> bool:
        """Whether each row is sent with a seed of its own."""
        return getattr(self, "seed", None) is not None

    @property
    def keeps_reasoning(self) -> bool:
        """Whether the model's reasoning is kept beside the prediction, in a column of its own."""
        return getattr(self, "reasoning", None) == "keep"

    def rows_most(self, seats: int) -> int:
        """The most rows that share a request. seats: how many rows the engine computes at once."""
        return 1

    @classmethod
    def answer_bytes(cls, values: Mapping[str, Any]) -> int:
        """How large one row's answer is at most, as far as that can be foreseen. values: raw, as the section has them."""
        return ANSWER_BYTES

    @classmethod
    def findings(cls, values: Mapping[str, Any], backend: str) -> list[Finding]:
        """What is wrong with the raw values beyond their types; paths begin below ``request``.

        backend: of vLLM's structured output, "auto" if the job does not name one.
        """
        return []


INPUT: Final = "Jinja2 template over the query's columns: the text that the model sees. NULL reads as empty text."
OVERLONG: Final = "What to do with a text longer than the model allows: cut it, or make the row a dead letter."


CHARS_PER_REQUEST: Final = 4096
"""About 1,000 tokens. A request costs the engine's API server as much as several short rows, so it holds many of them. It
holds few long rows, so that a slow or refused request does not affect many."""
ROWS_PER_REQUEST_MAX: Final = 64


class ListRequest(TaskRequest):
    """What the kinds whose endpoint takes lists have in common."""

    overlong: Overlong = Field(default="dead_letter", description=OVERLONG, examples=["truncate"])
    rows_per_request: int | None = Field(
        default=None,
        ge=1,
        le=2048,
        description="How many rows share a request; by default it depends on the length of their texts.",
        examples=[16],
    )

    @property
    def chars_per_request(self) -> int | None:
        """How many characters of text fill a request; None if the job states how many rows do."""
        return CHARS_PER_REQUEST if self.rows_per_request is None else None

    def rows_most(self, seats: int) -> int:
        return self.rows_per_request or min(ROWS_PER_REQUEST_MAX, seats)


def truncation(request: TaskRequest) -> dict[str, Any]:
    """vLLM's parameter for ``overlong``: -1 cuts at the model's own length; absent, an overlong input is refused with 400."""
    return {"truncate_prompt_tokens": -1} if request.truncates else {}
