"""Completion: ``POST /v1/completions``, the text that follows a row's prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from nightshift.fields import section
from nightshift.tasks._sampling import Prompt, Sampling, SamplingRequest
from nightshift.tasks.base import Text

if TYPE_CHECKING:
    from nightshift.tasks.base import Job, RowName


class Request(SamplingRequest):
    """What the model is asked for a row of a completion job."""

    TEMPLATES: ClassVar = ("prompt",)
    LEADING: ClassVar = ("prompt",)

    prompt: section.Text = Field(
        description="Jinja2 template: the text that the model continues, without any chat template.",
        examples=["{{ title }}\n\nIn short:"],
    )


class Kind(Sampling):
    """`nightshift.tasks.base.TaskKind` for models that continue a text."""

    message = False

    def __init__(self, job: Job, request: Request) -> None:
        super().__init__(job, request)
        self._prompt = Text(request.prompt, job.rendering)
        self.columns = self._prompt.columns

    def render(self, row: Mapping[str, Any], name: RowName) -> Prompt:
        return Prompt(name, self._prompt.of(row))

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        (prompt,) = payloads
        return "/v1/completions", self.body(prompt, retry, {"prompt": prompt.content})
