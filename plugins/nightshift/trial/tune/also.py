"""Settings that may change answers, tried only because the user asks: how fast, and how many answers stay the same. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from nightshift.run.answers.compare import Same
from nightshift.spec.vllm_flags import affects_answers
from nightshift.trial.outcomes import Cause

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

DTYPE = "dtype"


@dataclass(frozen=True)
class Setting:
    """name: ``dtype``, or a flag of ``vllm serve`` with dashes."""

    name: str
    value: Any

    @classmethod
    def read(cls, text: str) -> Setting:
        """``kv-cache-dtype=fp8``. Raises ValueError with what to write."""
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("--").replace("_", "-")
        if not (name and equals and value.strip()):
            raise ValueError(f"{text!r} is no setting; write, for example, dtype=bfloat16 or kv-cache-dtype=fp8")
        if not affects_answers(name):
            raise ValueError(f"{name} changes no answer; this option is for dtype and for flags that may, as kv-cache-dtype")
        return cls(name, yaml.safe_load(value))

    @property
    def words(self) -> str:
        return f"{self.name}={self.value}"

    @property
    def changes(self) -> dict[str, Any]:
        """To the section ``engine`` of a job file."""
        return {DTYPE: self.value} if self.name == DTYPE else {"args": {self.name: self.value}}

    def on(self, spec: JobSpec) -> JobSpec:
        """The job with it, which is another run. Raises ValueError for what a job cannot state."""
        body = spec.model_dump(mode="json")
        engine = body["engine"]
        if self.name == DTYPE:
            engine[DTYPE] = self.value
        else:
            kept = {name: value for name, value in engine["args"].items() if name.replace("_", "-") != self.name}
            engine["args"] = {**kept, self.name: self.value}
        try:
            return type(spec).model_validate(body)
        except ValidationError as error:
            why = "; ".join(str(each["msg"]) for each in error.errors())
            raise ValueError(f"a job cannot have {self.words}: {why}") from None


@dataclass(frozen=True)
class Found:
    """What a setting brought at the chosen point. ratio: to the chosen settings without it, with its interval; None if it
    failed, and then cause says why. same: None if it failed before it answered."""

    setting: Setting
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    cause: Cause | None = None
    same: Same | None = None

    @property
    def better(self) -> bool:
        return self.cause is None and self.low is not None and self.low > 1

    @property
    def sentence(self) -> str:
        if self.cause is not None:
            return f"With {self.setting.words}: {self.cause.words}."
        same = f" {self.same.words}." if self.same else ""
        return (
            f"With {self.setting.words}: {self.ratio:.2f} times the chosen settings ({self.low:.2f} to {self.high:.2f}).{same} "
            "It opens a new run."
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "cause": self.cause and self.cause.value, "better": self.better, "sentence": self.sentence}
