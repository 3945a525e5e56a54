"""What Google's documents leave open, and the cheapest real call that settles each point.

A question is about BigQuery or Cloud Storage as nightshift uses them. Its answer has what the service did, whether that is as
documented, and whether nightshift works with it. The statements are nightshift's own wherever it has one.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from google.api_core.exceptions import BadRequest, Conflict, Forbidden, GoogleAPICallError, NotFound, PreconditionFailed
from google.cloud import bigquery

from local.smoke.place import JOB_S, Place, reason
from nightshift.warehouse import publish
from nightshift.warehouse.errors import CONFLICTS

TYPES: Final = """\
TIMESTAMP '2026-01-02 03:04:05.678901+00' AS stamp, DATETIME '2026-01-02 03:04:05.678901' AS moment, [1, 2] AS numbers,
  0.1 AS ratio, NUMERIC '1.000000001' AS amount, JSON '{"a": 1}' AS document, DATE '2026-01-02' AS day, b'\\\\x00' AS raw"""
"""A column of each type that a key or a request may have and whose form in Parquet could surprise."""


@dataclass(frozen=True)
class Answer:
    """found: what the service did, in a few words. documented: as in its documents. works: nightshift gets along with it."""

    found: str
    documented: bool
    works: bool


@dataclass(frozen=True)
class Question:
    """breaks: what goes wrong in a night if nightshift does not get along with the answer."""

    question: str
    breaks: str
    ask: Callable[[Place], Answer]


def timestamps(place: Place) -> Answer:
    kind = _exported(place).schema.to_arrow_schema().field("stamp").type
    marked = pa.types.is_timestamp(kind) and kind.tz is not None
    fits = pa.types.is_timestamp(kind) and kind.unit == "us"
    return Answer(f"{kind}, {'marked as UTC' if marked else 'not marked as UTC'}", fits and not marked, fits)


def arrays(place: Place) -> Answer:
    path = next(column.path for column in _columns(_exported(place)) if column.path.startswith("numbers"))
    return Answer(f"column {path}", path == "numbers", True)


def floats(place: Place) -> Answer:
    kind = _exported(place).schema.to_arrow_schema().field("ratio").type
    # The documents say FLOAT for FLOAT64. In Parquet that would be 32 bits, and every key would lose digits.
    return Answer(str(kind), kind in (pa.float64(), pa.float32()), kind == pa.float64())


def round_trip(place: Place) -> Answer:
    """Loads the exported files as `publish` loads chunks: the schema given, lists inferred."""
    _exported(place)
    source = place.bigquery.get_table(place.table("types"))
    options = bigquery.ParquetOptions()  # type: ignore[no-untyped-call]
    options.enable_list_inference = True
    config = bigquery.LoadJobConfig(source_format="PARQUET", parquet_options=options, schema=source.schema)
    config.write_disposition = "WRITE_TRUNCATE"
    loaded = place.table("loaded")
    load = place.bigquery.load_table_from_uri(f"gs://{place.name}/types-*", loaded, location=place.location, job_config=config)
    try:
        load.result(timeout=JOB_S)
    except GoogleAPICallError as error:
        return Answer(reason(error), documented=False, works=False)
    before, after = (place.query(f"SELECT TO_JSON_STRING(t) FROM `{name}` AS t") for name in (place.table("types"), loaded))
    return Answer("the same values" if before == after else f"{after}, not {before}", before == after, before == after)


def not_exportable(place: Place) -> Answer:
    taken = []
    for name, value in {"INTERVAL": "INTERVAL 1 DAY", "RANGE": "RANGE(DATE '2026-01-01', NULL)"}.items():
        try:
            _export(place, f"SELECT {value} AS v", f"refused-{name.lower()}")
        except GoogleAPICallError:
            continue
        taken.append(name)
    # The task plan refuses both, so it only could take them too.
    return Answer(f"{' and '.join(taken)} exported" if taken else "both refused", not taken, True)


def no_rows(place: Place) -> Answer:
    _export(place, "SELECT 1 AS n FROM UNNEST([1]) AS x WHERE FALSE", "empty")
    files = place.objects("empty")
    rows = sum(pq.ParquetFile(io.BytesIO(body)).metadata.num_rows for body in files.values())
    return Answer(f"{len(files)} files with {rows} rows", rows == 0, rows == 0)


def assertion_inside(place: Place) -> Answer:
    try:
        place.query("BEGIN TRANSACTION; ASSERT 1 = 1; COMMIT TRANSACTION;")
    except BadRequest as error:
        return Answer(reason(error), documented=True, works=True)
    # The list of statements leaves it out; nightshift does not use it there.
    return Answer("allowed", documented=False, works=True)


def error_rolls_back(place: Place) -> Answer:
    table = place.table("rolled_back")
    place.query(f"CREATE TABLE `{table}` AS SELECT 1 AS n")
    try:
        place.query(f"BEGIN TRANSACTION; DELETE FROM `{table}` WHERE TRUE; SELECT ERROR('stop'); COMMIT TRANSACTION;")
    except BadRequest as error:
        [(rows,)] = place.query(f"SELECT COUNT(*) FROM `{table}`")
        kept = rows == 1 and "stop" in reason(error)
        return Answer(f"{reason(error)}; {rows} of 1 row is left", kept, kept)
    return Answer("the script went on", documented=False, works=False)


def row_count_inside(place: Place) -> Answer:
    table = place.table("counted")
    place.query(f"CREATE TABLE `{table}` (n INT64)")
    insert = f"INSERT INTO `{table}` SELECT * FROM UNNEST([1, 2, 3])"
    try:
        place.query(f"BEGIN TRANSACTION; {insert}; SELECT IF(@@row_count = 3, NULL, ERROR('other')); COMMIT TRANSACTION;")
    except BadRequest as error:
        return Answer(reason(error), documented=False, works=False)
    return Answer("3 for three rows", documented=True, works=True)


def ordinals(place: Place) -> Answer:
    """The statement that proves before each publication that every row is there once."""
    rows = "(SELECT ordinal, CAST(NULL AS STRING) AS dead_reason FROM UNNEST({}) AS ordinal)"
    counts = dict.fromkeys(("rows", "planned", "predictions"), ("INT64", 70))
    place.query(publish.assertions(rows.format("GENERATE_ARRAY(0, 69)")), counts)
    try:
        place.query(publish.assertions(rows.format("ARRAY_CONCAT(GENERATE_ARRAY(0, 68), [5])")), counts)
    except BadRequest as error:
        noticed = "every ordinal once" in reason(error)
        return Answer(reason(error), noticed, noticed)
    return Answer("an ordinal that is there twice goes unnoticed", documented=False, works=False)


def conflict(place: Place) -> Answer:
    """Two sessions delete rows of one table, each in a transaction of its own."""
    table = place.table("contended")
    place.query(f"CREATE TABLE `{table}` AS SELECT n FROM UNNEST([1, 2]) AS n")
    sessions = [_Session(place), _Session(place)]
    try:
        for number, session in enumerate(sessions, 1):
            session.run("BEGIN TRANSACTION")
            try:
                session.run(f"DELETE FROM `{table}` WHERE n = {number}")
            except GoogleAPICallError as error:
                said = reason(error)
                return Answer(said, "concurrent update against table" in said, any(words in said for words in CONFLICTS))
        return Answer("both may delete", documented=False, works=False)
    finally:
        for session in sessions:
            session.end()


def create_only(place: Place) -> Answer:
    blob = place.storage.bucket(place.name).blob("once")
    blob.upload_from_string(b"first", if_generation_match=0)
    try:
        blob.upload_from_string(b"second", if_generation_match=0)
    except PreconditionFailed as error:
        kept = blob.download_as_bytes() == b"first"
        return Answer(f"{error.code}, the first object stays" if kept else "412, but overwritten", kept, kept)
    return Answer("overwritten", documented=False, works=False)


def one_job_an_id(place: Place) -> Answer:
    name = f"nightshift-smoke-{uuid.uuid4().hex}"
    place.bigquery.query("SELECT 1", job_id=name, location=place.location, job_retry=None).result(timeout=JOB_S)
    config = bigquery.QueryJobConfig(use_query_cache=False)
    try:
        place.bigquery.query("SELECT 2", config, job_id=name, location=place.location, job_retry=None)
    except Conflict as error:
        return Answer(str(error.code), documented=True, works=True)
    return Answer("the id was taken twice", documented=False, works=False)


def dry_run_of_dml(place: Place) -> Answer:
    """Whether plan can find a right to update that is missing: a public table, to which this account may not write."""
    table = "bigquery-public-data.usa_names.usa_1910_current"
    config = bigquery.QueryJobConfig(dry_run=True, use_query_cache=False)
    try:
        place.bigquery.query(f"DELETE FROM `{table}` WHERE FALSE", config, location="US", job_retry=None)
    except GoogleAPICallError as error:
        # The emulator has no such table, which leaves it open.
        return Answer(reason(error), documented=True, works=isinstance(error, Forbidden | NotFound))
    # No document says so; plan cannot find it then, and publish is refused.
    return Answer("taken without the right to update", documented=False, works=True)


OPEN_QUESTIONS: Final = (
    Question("How is a TIMESTAMP exported to Parquet?", "extract: the driver cannot read the keys", timestamps),
    Question("How is an ARRAY exported to Parquet?", "infer: image and list columns cannot be read", arrays),
    Question("How is a FLOAT64 exported to Parquet?", "infer: floating-point keys lose digits", floats),
    Question("Does what was exported load as it was?", "publish: keys differ from those of the source", round_trip),
    Question("Are INTERVAL and RANGE refused by an export?", "extract: nothing; the task plan refuses them", not_exportable),
    Question("What does an export of no rows write?", "extract: a day without rows fails", no_rows),
    Question("Is ASSERT allowed inside a transaction?", "publish: nothing; no statement of ours rests on it", assertion_inside),
    Question("Does ERROR inside a transaction roll it back?", "publish: a refused run changes the table", error_rolls_back),
    Question("What is @@row_count inside a transaction?", "publish: every publication fails", row_count_inside),
    Question("Is a row that is staged twice noticed?", "publish: a wrong table", ordinals),
    Question("How does one of two transactions on a table fail?", "publish: days of a backfill fail for good", conflict),
    Question(
        "Does a second create-only write leave the object?", "infer: two workers overwrite each other's chunk", create_only
    ),
    Question(
        "Does a dry run of a DELETE ask for bigquery.tables.updateData?",
        "plan: a right that is missing shows only in publish, behind the accelerators",
        dry_run_of_dml,
    ),
    Question("Is a job id refused the second time?", "extract, publish: a retry does the work twice", one_job_an_id),
)


class _Session:
    """A session of BigQuery: its statements share a transaction."""

    def __init__(self, place: Place) -> None:
        self._place = place
        config = bigquery.QueryJobConfig(create_session=True)
        job = place.bigquery.query("SELECT 1", config, location=place.location, job_retry=None)
        job.result(timeout=JOB_S)
        assert job.session_info is not None
        self._id = str(job.session_info.session_id)

    def run(self, sql: str) -> None:
        """Raises GoogleAPICallError."""
        properties = [bigquery.ConnectionProperty("session_id", self._id)]
        config = bigquery.QueryJobConfig(connection_properties=properties)
        self._place.bigquery.query(sql, config, location=self._place.location, job_retry=None).result(timeout=JOB_S)

    def end(self) -> None:
        """Rolls an open transaction back."""
        self.run("CALL BQ.ABORT_SESSION()")


def _exported(place: Place) -> Any:
    """The metadata of a file with the row of `TYPES`; exported once for a place."""
    if not place.objects("types-"):
        place.query(f"CREATE TABLE `{place.table('types')}` AS SELECT {TYPES}")
        _export(place, f"SELECT * FROM `{place.table('types')}`", "types")
    files = [pq.ParquetFile(io.BytesIO(body)).metadata for body in place.objects("types-").values()]
    return next(each for each in files if each.num_rows)


def _columns(metadata: Any) -> list[Any]:
    return [metadata.schema.column(number) for number in range(metadata.num_columns)]


def _export(place: Place, query: str, stem: str) -> None:
    place.query(
        f"EXPORT DATA OPTIONS (uri='gs://{place.name}/{stem}-*.parquet', format='PARQUET', compression='SNAPPY') AS {query}"
    )
