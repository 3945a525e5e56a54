"""Names of Pub/Sub, as a stream's file and a command may write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from nightshift.spec import StreamSpec


def full_name(name: str, kind: Literal["subscriptions", "topics"], project: str | None) -> str:
    """projects/PROJECT/KIND/NAME of a name, which may have that form already. Raises ValueError if nothing says the project."""
    if "/" in name:
        return name
    if not project:
        raise ValueError(f"{name} has no project. Write projects/PROJECT/{kind}/{name}, or set NIGHTSHIFT_PROJECT.")
    return f"projects/{project}/{kind}/{name}"


def redriven_from(spec: StreamSpec, project: str | None) -> str:
    """The full name of the subscription of a stream whose dead letters can be redriven. Raises ValueError for any other."""
    from nightshift.spec.stream import Messages

    if not isinstance(spec.source, Messages) or spec.sink.dead_letters_table is None:
        raise ValueError(
            f"The dead letters of {spec.job} cannot be redriven: only a stream from a subscription into a table of PostgreSQL "
            "keeps them where they can be marked. Publish the corrected messages as new ones, or write the files again."
        )
    return full_name(spec.source.subscription, "subscriptions", project)
