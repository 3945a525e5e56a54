"""The section ``engine:`` of a job and of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from nightshift.fields.section import Section
from nightshift.spec import values
from nightshift.spec.vllm_flags import affects_answers, dashed

FlagName = Annotated[str, AfterValidator(values.engine_flag)]
FlagValue = Annotated[bool | int | float | str | list[int | float | str], BeforeValidator(values.engine_value)]


class Engine(Section):
    """Settings of vLLM."""

    OPERATIONAL: ClassVar = ("max_num_seqs",)

    max_num_seqs: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="How many rows the engine computes at once; by default as many as vLLM takes on the accelerator. "
        "`nightshift plan` says how many fit its memory.",
        examples=[64],
    )
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Longest input in tokens; by default the model's own limit.",
        examples=[256],
    )
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = Field(
        default="auto", description="Type of weights and activations.", examples=["float32"]
    )
    args: Annotated[dict[FlagName, FlagValue], AfterValidator(values.engine_args)] = Field(
        default_factory=dict,
        description="More flags of `vllm serve`, without dashes: true is --flag, false is --no-flag, others are --flag=value. "
        "A list is for a flag that takes several values.",
        examples=[{"enforce-eager": True}],
    )

    @property
    def flags(self) -> dict[str, Any]:
        """`args`, their names with dashes, as vLLM reads them."""
        return {dashed(name): value for name, value in self.args.items()}

    def semantic(self) -> dict[str, Any]:
        """Without the flags that do not affect answers: `nightshift.spec.vllm_flags` tells them apart."""
        parts = super().semantic()
        args = {name: value for name, value in parts.pop("args", {}).items() if affects_answers(name)}
        return parts | ({"args": args} if args else {})

    def tuned(self, other: Mapping[str, Any]) -> Self:
        """With the flags of `other` that do not affect answers, too, instead of its own."""
        found = super().tuned(other)
        if "args" not in other:
            return found
        kept = {name: value for name, value in self.args.items() if affects_answers(name)}
        new = {name: value for name, value in other["args"].items() if not affects_answers(name)}
        return found.model_copy(update={"args": kept | new})
