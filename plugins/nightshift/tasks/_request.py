"""The section ``request:`` of a job file, as far as task kinds have it in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from nightshift.fields.mistakes import Finding
from nightshift.fields.parts import Duration, Part
from nightshift.fields.values import duration_seconds

Overlong = Literal["truncate", "dead_letter"]


class TaskRequest(Part):
    """The section ``request:`` of every task kind, each of which adds what it needs in a class of its own.

    TEMPLATES: the fields that are Jinja2 templates over the query's columns. COLUMNS: the fields that name one column, each
    with the beginnings of the GoogleSQL types that it may have.
    OPERATIONAL: the fields that decide no answer, so that another value keeps the run.
    """

    TEMPLATES: ClassVar[tuple[str, ...]] = ()
    COLUMNS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    OPERATIONAL: ClassVar[tuple[str, ...]] = ("timeout", "rows_per_request")

    timeout: Duration = Field(
        default="10m",
        description="How long one request may take before it is sent again: 90s, 10m, 1h.",
        examples=["10m"],
    )

    @property
    def timeout_seconds(self) -> int:
        return duration_seconds(self.timeout)

    @property
    def truncates(self) -> bool:
        """Whether a text over the model's length is cut."""
        return getattr(self, "overlong", None) == "truncate"

    def semantic(self) -> dict[str, Any]:
        """The JSON form of what decides answers. An optional field that is absent leaves no trace, so that kinds can grow."""
        return self.model_dump(mode="json", exclude=set(self.OPERATIONAL), exclude_none=True)

    @classmethod
    def findings(cls, values: Mapping[str, Any]) -> list[Finding]:
        """What is wrong with the raw values beyond what their types tell; paths begin below ``request``."""
        return []


INPUT: Final = "Jinja2 template over the query's columns: the text that the model sees. NULL reads as empty text."
OVERLONG: Final = "What becomes of a text over the model's length: cut, or kept out with its reason."


class ListRequest(TaskRequest):
    """What the kinds whose endpoint takes lists have in common."""

    overlong: Overlong = Field(default="dead_letter", description=OVERLONG, examples=["truncate"])
    rows_per_request: int = Field(
        default=16, ge=1, le=2048, description="How many rows share a request where the endpoint takes lists.", examples=[16]
    )


def truncation(request: TaskRequest) -> dict[str, Any]:
    """vLLM's parameter for ``overlong``: -1 cuts at the model's own length; absent, an overlong input is refused with 400."""
    return {"truncate_prompt_tokens": -1} if request.truncates else {}
