"""Dead letters of a stream, published again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from nightshift.fields.text import n
from nightshift.settings import Settings, SettingsError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.spec import StreamSpec
    from nightshift.stream.redrive import Redrive, Redriven


class DeadLettersLeft(AirflowException):
    """Pub/Sub or the database did not answer. The next attempt does the rest."""


class RedriveOperator(BaseOperator):
    """
    Publishes dead letters of a stream again, as they were, and marks them in the table of dead letters (docs/use/streams.md).

    A repeat continues where it stopped: a message may be published twice, but has one outcome. Uses the connections
    ``NIGHTSHIFT_POSTGRES_CONN_ID`` for the database, ``NIGHTSHIFT_GCP_CONN_ID`` for Pub/Sub. Returns what was done as
    ``nightshift stream redrive --json`` prints it. All parameters are templated.

    :param stream: the name of a file in `streams_folder`, without its ending, or a path.
    :param reasons: only dead letters with one of these reasons; empty for any.
    :param since: only those that died then or later (ISO 8601; UTC unless it says otherwise).
    :param until: only those that died before.
    :param most: at most this number, those that died first.
    :param topic: where they are published; by default on the topic of the stream's subscription.
    :param only_count: whether to publish nothing.
    :param streams_folder: where the files of streams are.
    """

    template_fields: Sequence[str] = ("stream", "reasons", "since", "until", "most", "topic", "only_count", "streams_folder")

    def __init__(
        self,
        *,
        stream: str,
        reasons: Sequence[str] | str | None = None,
        since: str | None = None,
        until: str | None = None,
        most: int | str = 1000,
        topic: str | None = None,
        only_count: bool | str = False,
        streams_folder: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.reasons = reasons
        self.since = since
        self.until = until
        self.most = most
        self.topic = topic
        self.only_count = only_count
        self.streams_folder = streams_folder

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.hooks.credentials import credentials_of
        from nightshift.hooks.postgres import database_address
        from nightshift.spec import SpecErrors

        try:
            settings = Settings.from_environment()
            spec = self._spec()
        except (SettingsError, SpecErrors) as error:
            raise AirflowFailException(str(error)) from error
        address = database_address(settings.postgres_conn_id)
        asked = self._asked(spec, settings.project)
        done = self._redrive(address, spec, asked, credentials_of(settings.gcp_conn_id, DeadLettersLeft))
        self.log.info("%s", done)
        for name, words in done.refused.items():
            self.log.error("Dead letter %s: %s", name, words)
        if done.refused:
            raise AirflowFailException(f"Pub/Sub refuses {n(len(done.refused), 'dead letter')}; the log says why. {done}.")
        return done.to_json()

    def _spec(self) -> StreamSpec:
        from nightshift.spec import load_stream
        from nightshift.spec.folder import job_files

        folder = Path(self.streams_folder)
        files = {file.stem: file for file in job_files(folder)} if self.streams_folder and folder.is_dir() else {}
        return load_stream(files.get(str(self.stream), Path(str(self.stream))))

    def _asked(self, spec: StreamSpec, project: str) -> Redrive:
        from nightshift.stream.dead_letters import Selection
        from nightshift.stream.names import full_name, redriven_from
        from nightshift.stream.redrive import Redrive, check_reasons

        reasons = tuple(self.reasons.split(",") if isinstance(self.reasons, str) and self.reasons else self.reasons or ())
        if not str(self.most).isdecimal() or int(self.most) < 1:
            raise AirflowFailException(f"most is {self.most!r}. Write a whole number of 1 or more.")
        if str(self.only_count) not in ("True", "False"):
            raise AirflowFailException(f"only_count is {self.only_count!r}. Write True or False.")
        selection = Selection(reasons, _moment("since", self.since), _moment("until", self.until), int(self.most))
        try:
            check_reasons(reasons)
            subscription = redriven_from(spec, project)
        except ValueError as error:
            raise AirflowFailException(str(error)) from error
        return Redrive(
            subscription,
            selection,
            full_name(self.topic, "topics", project) if self.topic else None,
            str(self.only_count) == "True",
        )

    def _redrive(self, address: str, spec: StreamSpec, asked: Redrive, credentials: Any) -> Redriven:
        from nightshift.stream.ports import SinkRefused, Unavailable
        from nightshift.stream.pubsub_client import PubSubRefused
        from nightshift.stream.redrive import redrive

        try:
            return asyncio.run(redrive(address, spec, asked, credentials))
        except Unavailable as error:
            raise DeadLettersLeft(str(error)) from error
        except (PubSubRefused, SinkRefused) as error:
            raise AirflowFailException(str(error)) from error


def _moment(name: str, text: str | None) -> datetime | None:
    """Raises AirflowFailException if it is not a time."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise AirflowFailException(f"{name} is {text!r}. Write a time, for example 2026-11-20T08:00:00+00:00.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
