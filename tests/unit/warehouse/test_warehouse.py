"""The warehouse's pure parts: names, SQL text, types, and what BigQuery's errors mean. No emulator here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import requests
import yaml
from google.api_core import exceptions as api
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import TransportError
from google.cloud.bigquery import Client, QueryJob, SchemaField, Table, TimePartitioning

from nightshift.run.manifest import SealedChunk
from nightshift.run.names import RunRef
from nightshift.run.order import Order
from nightshift.run.redo.redo import Redo
from nightshift.settings import Settings
from nightshift.warehouse import (
    JobState,
    Warehouse,
    WarehouseError,
    WarehouseUnavailable,
    errors,
    jobs,
    publications,
    publish,
    query,
    schema,
)
from tests.builders import RUN, a_manifest, a_spec

pytestmark = pytest.mark.unit

SETTINGS = Settings(bucket="lake", project="acme")
COLUMNS = {"id": "INT64", "text": "STRING"}


def test_importing_the_warehouse_is_light() -> None:
    heavy = "('google.cloud.bigquery', 'pyarrow', 'obstore', 'pydantic', 'requests', 'sqlglot', 'jinja2')"
    code = f"import sys, nightshift.warehouse; print([name for name in {heavy} if name in sys.modules])"
    path = next(entry for entry in sys.path if entry.endswith("plugins"))
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_job_id_names_run_partition_step_and_attempt() -> None:
    assert jobs.job_id("12345678", RUN, "extract", 3) == "nightshift-12345678-0123456789abcdef-20261120-extract-3"


@pytest.mark.parametrize(
    ("sql", "bare"),
    [
        ("SELECT 1", "SELECT 1"),
        ("SELECT 1;", "SELECT 1"),
        ("  SELECT 1 -- one;\n ; # two\n;/* three; */\n", "SELECT 1"),
        ("SELECT ';' AS a -- \N{GRINNING FACE};", "SELECT ';' AS a"),
        ("SELECT '\N{GRINNING FACE}\N{GRINNING FACE}' AS a;", "SELECT '\N{GRINNING FACE}\N{GRINNING FACE}' AS a"),
        ("-- first\nSELECT r'\\d;' AS a;", "SELECT r'\\d;' AS a"),
    ],
)
def test_a_query_loses_what_follows_its_end_and_nothing_else(sql: str, bare: str) -> None:
    assert query.bare_query(sql).removeprefix("-- first\n").strip() == bare


def test_the_export_keeps_a_comment_from_swallowing_the_wrapping() -> None:
    spec = a_spec(source={"query": "SELECT id, text -- all of it\nFROM `d.t` WHERE day = @partition;", "key": ["id", "text"]})

    assert query.plain_export(spec, "lake", RUN.export_pattern(2)) == (
        "EXPORT DATA OPTIONS (uri='gs://lake/job/2026-11-20/0123456789abcdef/inputs/2-part-*.parquet', "
        "format='PARQUET', compression='SNAPPY', overwrite=true) AS\n"
        "SELECT id, text -- all of it\nFROM `d.t` WHERE day = @partition"
    )


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (SchemaField("age", "INTERVAL"), r"the column age of type INTERVAL, and BigQuery does not export INTERVAL to Parquet"),
        (SchemaField("stay", "RANGE", range_element_type="DATE"), r"the column stay of type RANGE, and .* not export RANGE"),
        (
            SchemaField("visits", "RECORD", "REPEATED", fields=[SchemaField("how long", "INTERVAL")]),
            r"the column visits of type ARRAY<STRUCT<`how long` INTERVAL>>, and .* Leave the column out of the query, or cast",
        ),
        (SchemaField("id", "JSON"), r"id of type JSON, which cannot be copied"),
        (SchemaField("id", "STRING", "REPEATED"), r"id of type ARRAY<STRING>, which cannot be copied"),
        (
            SchemaField("id", "RECORD", fields=[SchemaField("a", "INTEGER")]),
            r"id of type STRUCT<`a` INT64>, which cannot be copied",
        ),
    ],
)
def test_a_column_that_would_fail_the_night_is_refused_before_it(field: SchemaField, message: str) -> None:
    fields = {name: SchemaField(name, "STRING") for name in ("id", "text")} | {field.name: field}

    with pytest.raises(WarehouseError, match=message):
        query.check_columns(a_spec(), fields.values())


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (SchemaField("more", "GEOGRAPHY"), r"more of type GEOGRAPHY, .*: ST_ASTEXT\(more\) AS more\."),
        (SchemaField("more", "JSON"), r"more of type JSON, .*: TO_JSON_STRING\(more\) AS more\."),
        (SchemaField("more", "STRING", "REPEATED"), r"more of type ARRAY<STRING>, .*: TO_JSON_STRING\(more\) AS more\."),
        (SchemaField("more", "RECORD", fields=[SchemaField("a", "DATE")]), r"more of type STRUCT<`a` DATE>, .*TO_JSON_STRING"),
        (SchemaField("less", "STRING"), r"source.pass_through names the column more, which source.query does not return\. "),
    ],
)
def test_a_column_that_cannot_be_passed_through_is_refused_before_the_night(field: SchemaField, message: str) -> None:
    spec = a_spec(source__pass_through=["more"])
    fields = [*(SchemaField(name, "STRING") for name in ("id", "text")), field]

    with pytest.raises(WarehouseError, match=message):
        query.check_columns(spec, fields)


def test_a_column_that_is_passed_through_stands_beside_the_key_in_chunk_staging_and_destination() -> None:
    spec, columns = a_spec(source__pass_through=["price"]), {"id": "INT64", "text": "STRING", "price": "NUMERIC"}

    assert query.check_columns(spec, [SchemaField(name, kind) for name, kind in columns.items()]) == columns
    assert [(each.name, each.field_type) for each in schema.staging_fields(spec, columns)][:4] == [
        ("ordinal", "INT64"),
        ("id", "INT64"),
        ("price", "NUMERIC"),
        ("prediction", "FLOAT"),
    ]
    assert [each.name for each in schema.destination_fields(spec, columns)][:3] == ["id", "price", "vector"]
    script = publish.publish_script(spec, ["p.d.s"], SETTINGS, dead=True, stale=False)
    assert "(`id`, `price`, `vector`, `partition_date`," in script
    assert "SELECT `id`, `price`, prediction, @partition," in script
    # A dead letter is named by its key alone.
    assert "TO_JSON_STRING(STRUCT(chunk.`id` AS `id`))" in script


def test_an_existing_destination_without_the_column_says_how_to_add_it() -> None:
    spec = a_spec(source__pass_through=["price"])
    columns = {"id": "INT64", "text": "STRING", "price": "NUMERIC"}
    fields = [field for field in schema.destination_fields(spec, columns) if field.name != "price"]
    there = Table("acme.d.out", schema=fields)
    there.time_partitioning = TimePartitioning(field=spec.destination.partition_column)
    there = Table.from_api_repr({**there.to_api_repr(), "type": "TABLE"})

    with pytest.raises(WarehouseError, match=r"no column price. Add it: ALTER TABLE `acme.d.out` ADD COLUMN `price` NUMERIC"):
        schema.check_compatible(there, schema.destination_fields(spec, columns), (), spec.destination.partition_column)


IMAGES: dict[str, Any] = {"task": "image", "request": {"user": "What is it?", "image": "photo"}}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            SchemaField("photo", "INTEGER"),
            r"request.image names the column photo of type INT64; it takes BYTES or STRING\. Name another column, or cast",
        ),
        (
            SchemaField("photos", "BYTES"),
            r"names the column photo, which .* return \(did you mean photos\?\)\. It returns id, photos",
        ),
        (
            SchemaField("x", "BYTES"),
            r"names the column photo, which source.query does not return\. It returns id, x\. Add photo",
        ),
    ],
)
def test_a_request_that_cannot_take_its_column_is_refused_before_the_night(field: SchemaField, message: str) -> None:
    fields = [SchemaField("id", "STRING"), field]

    with pytest.raises(WarehouseError, match=message):
        query.check_columns(a_spec(**IMAGES), fields)


def test_a_column_may_be_called_like_a_type_that_is_not_exported() -> None:
    part = SchemaField("v", "RECORD", fields=[SchemaField("RANGE", "DATE")])
    fields = [SchemaField("id", "STRING"), SchemaField("text", "STRING"), SchemaField("INTERVAL", "INTEGER"), part]

    assert query.check_columns(a_spec(), fields)["v"] == "STRUCT<`RANGE` DATE>"


@pytest.mark.parametrize(
    ("chunks", "sizes"), [(0, [0]), (1, [1]), (10_000, [10_000]), (10_001, [10_000, 1]), (25_000, [10_000, 10_000, 5_000])]
)
def test_chunks_are_staged_in_as_many_tables_as_load_jobs(chunks: int, sizes: list[int]) -> None:
    run = RunRef("job", "2026-11-20", "0123456789abcdef", 2)
    paths = [f"{run.prefix}/ledger/chunk-{number:08d}.parquet" for number in range(chunks)]
    manifest = a_manifest(chunks=tuple(SealedChunk(number, path, "", 1, 1, 0) for number, path in enumerate(paths)))
    tables = publish.staging_tables(run, manifest, SETTINGS)

    assert [len(uris) for _, uris in tables] == sizes
    assert [uri for _, uris in tables for uri in uris] == [f"gs://lake/{path}" for path in paths]
    assert [name for name, _ in tables][:2] == [
        f"acme.nightshift.staging_{SETTINGS.deployment}_0123456789abcdef_g2",
        f"acme.nightshift.staging_{SETTINGS.deployment}_0123456789abcdef_g2_1",
    ][: len(sizes)]


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("dead", [False, True])
def test_everything_that_changes_a_row_stands_inside_the_transaction(dead: bool, stale: bool) -> None:
    """And in it stands nothing but what BigQuery's page on transactions names: queries and DML. Nothing is sorted."""
    script = publish.publish_script(a_spec(), ["acme.nightshift.staging_x"], SETTINGS, dead=dead, stale=stale)
    before, _, rest = script.partition("BEGIN TRANSACTION;")
    inside, _, after = rest.partition("COMMIT TRANSACTION;")
    begins = {statement.split()[0] for statement in inside.split(";") if statement.strip()}
    deleted = [statement.split()[2] for statement in inside.split(";") if statement.split()[:1] == ["DELETE"]]

    assert [word for word in ("INSERT", "DELETE") if word in before + after] == []
    # WITH begins a query.
    assert begins == {"WITH", "SELECT", "DELETE", "INSERT"}
    assert after.strip() == ""
    assert "ORDER BY" not in script
    # Two transactions that delete from the dead letters, which all jobs share, would get in each other's way.
    assert deleted == ["`acme.d.out`", *(["`acme.nightshift.dead_letters`"] if stale else [])]


@pytest.mark.parametrize(
    ("arrow", "sql"),
    [
        (pa.list_(pa.float32()), "ARRAY<FLOAT64>"),
        (pa.string(), "STRING"),
        (pa.int32(), "INT64"),
        (pa.bool_(), "BOOL"),
        (pa.struct([("label", pa.string()), ("score", pa.float64())]), "STRUCT<`label` STRING, `score` FLOAT64>"),
        (pa.list_(pa.struct([("label", pa.string())])), "ARRAY<STRUCT<`label` STRING>>"),
    ],
)
def test_a_prediction_type_has_its_column_type(arrow: pa.DataType, sql: str) -> None:
    assert schema.sql_type(schema.arrow_field("vector", arrow)) == sql


def test_a_prediction_type_without_a_column_type_is_refused() -> None:
    with pytest.raises(ValueError, match="no column type"):
        schema.arrow_field("vector", pa.map_(pa.string(), pa.string()))


@pytest.mark.parametrize(
    ("legacy", "standard"),
    [("INTEGER", "INT64"), ("FLOAT", "FLOAT64"), ("BOOLEAN", "BOOL"), ("INT64", "INT64"), ("DATE", "DATE")],
)
def test_types_are_said_in_one_way(legacy: str, standard: str) -> None:
    assert schema.sql_type(SchemaField("a", legacy)) == standard


@pytest.mark.parametrize(
    ("table", "whole"), [("d.t", "acme.d.t"), ("other.d.t", "other.d.t"), ("example.com:other.d.t", "example.com:other.d.t")]
)
def test_a_destination_without_a_project_lies_in_the_deployments(table: str, whole: str) -> None:
    assert schema.destination_table(a_spec(destination__table=table), SETTINGS) == whole


TYPED = a_spec(
    task="chat",
    request={"user": "{{ text }}", "json_schema": {"type": "object", "properties": {"topic": {"type": "string"}}}},
    source={"query": "SELECT id, price, text FROM d.t WHERE day = @partition", "key": ["id", "price"]},
    model={"name": "m", "uri": "hf://org/m", "revision": "r1"},
)


def destination_with(**changed: SchemaField) -> Table:
    """As nightshift makes it, but for these columns."""
    columns = {"id": "STRING", "price": "NUMERIC", "text": "STRING"}
    fields = [changed.get(field.name, field) for field in schema.destination_fields(TYPED, columns)]
    there = Table("acme.d.out", schema=fields)
    there.time_partitioning = TimePartitioning(field=TYPED.destination.partition_column)
    return Table.from_api_repr({**there.to_api_repr(), "type": "TABLE"})


def check_destination(**changed: SchemaField) -> None:
    columns = {"id": "STRING", "price": "NUMERIC", "text": "STRING"}
    wanted = schema.destination_fields(TYPED, columns)
    schema.check_compatible(
        destination_with(**changed), wanted, (TYPED.destination.column,), TYPED.destination.partition_column
    )


@pytest.mark.parametrize(
    ("field", "harm"),
    [
        (SchemaField("price", "NUMERIC", precision=7, scale=2), r"rounds what is stored in NUMERIC\(7, 2\)"),
        (SchemaField("price", "NUMERIC", precision=7), r"rounds what is stored in NUMERIC\(7, 0\)"),
        (
            SchemaField(TYPED.destination.column, "RECORD", fields=[SchemaField("topic", "STRING", max_length=9)]),
            "refuses the whole run for one answer of more than 9 characters",
        ),
    ],
)
def test_a_destination_that_would_alter_or_refuse_what_is_written_is_refused_before_the_night(
    field: SchemaField, harm: str
) -> None:
    """BigQuery says nothing when it rounds a key, and it says that an answer is too long only when all are computed."""
    check_destination()
    with pytest.raises(WarehouseError, match=f"{field.name}: BigQuery {harm}. Lift it: ALTER TABLE .*SET DATA TYPE"):
        check_destination(**{field.name: field})


def test_a_key_of_limited_length_is_the_tables_own_business() -> None:
    check_destination(id=SchemaField("id", "STRING", max_length=36))


def test_a_name_cannot_leave_its_quotes() -> None:
    with pytest.raises(ValueError, match="cannot be quoted"):
        schema.quoted("a`; DROP TABLE b; --")


def _api_error(kind: Callable[..., Exception], reason: str | None = None, message: str = "words at [2:7]") -> Exception:
    details = [{"reason": reason, "message": message}] if reason else []
    return kind(f"POST https://bigquery/jobs: {message}\n\nLocation: EU\nJob ID: x\n", errors=details)


@pytest.mark.parametrize(
    "error",
    [
        _api_error(api.ServiceUnavailable),
        _api_error(api.InternalServerError, "backendError"),
        _api_error(api.TooManyRequests),
        _api_error(api.Forbidden, "rateLimitExceeded"),
        _api_error(api.BadRequest, "jobBackendError"),
        _api_error(api.Forbidden, "quotaExceeded", "Your project exceeded quota for tabledata.list bytes per second"),
        _api_error(
            api.BadRequest, "invalidQuery", "UPDATE ... would affect rows in the streaming buffer, which is not supported"
        ),
        api.RetryError("gave up", requests.ConnectionError("refused")),  # type: ignore[no-untyped-call]
        requests.ConnectionError("refused"),
        requests.ReadTimeout("slow"),
        TransportError("no token"),  # type: ignore[no-untyped-call]
        ConnectionResetError("reset"),
        TimeoutError("slow"),
    ],
)
def test_what_may_pass_by_itself_is_unavailable(error: Exception) -> None:
    with pytest.raises(WarehouseUnavailable, match=r"^The query: "), errors.translated("The query"):
        raise error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (_api_error(api.BadRequest, "invalidQuery"), r"^The query: words at \[2:7\]\. Correct the SQL\.$"),
        (
            _api_error(api.BadRequest, "invalidQuery", "No\n  match at [1:2]"),
            r"^The query: No match at \[1:2\]\. Correct the SQL\.$",
        ),
        (_api_error(api.BadRequest), r"^The query: words at \[2:7\]$"),
        (_api_error(api.NotFound), r"^The query: words at \[2:7\]\. Create it"),
        (_api_error(api.Forbidden, "accessDenied"), r"Grant the connection's service account"),
        (_api_error(api.Forbidden), r"Grant the connection's service account"),
        (
            _api_error(api.Forbidden, "quotaExceeded", "Custom quota exceeded"),
            r"^The query: Custom quota exceeded\. Wait until there is quota again",
        ),
        (_api_error(api.MethodNotImplemented, "notImplemented"), r"Contact Google Cloud's support"),
        (_api_error(api.BadRequest, "responseTooLarge"), r"Let the query return fewer"),
    ],
)
def test_what_a_person_must_change_is_said_in_bigquerys_words(error: Exception, message: str) -> None:
    with pytest.raises(WarehouseError, match=message), errors.translated("The query"):
        raise error


def test_other_exceptions_are_not_disguised() -> None:
    with pytest.raises(KeyError), errors.translated("The query"):
        raise KeyError("a bug of our own")


class _Job:
    """The three fields of a client's job that its error is made from."""

    job_id = "j"

    def __init__(self, result: dict[str, Any] | None, further: list[dict[str, Any]]) -> None:
        self.error_result, self.errors = result, further


def test_a_failed_job_tells_every_distinct_message_once() -> None:
    error = {"reason": "invalid", "message": "first"}

    assert jobs.failure(_Job(error, [error, {"message": "second"}])) == "BigQuery job j failed: first; second"  # type: ignore[arg-type]
    assert jobs.failure(_Job(None, [])) is None  # type: ignore[arg-type]


class _Client:
    """Knows one job: it has failed."""

    def __init__(self, name: str, reason: str, message: str) -> None:
        self._name = name
        self._error = {"reason": reason, "message": message}

    def get_job(self, name: str, **_: Any) -> QueryJob:
        if name != self._name:
            raise api.NotFound(name)  # type: ignore[no-untyped-call]
        return _failed_job(name, self._error)


def _failed_job(name: str, error: dict[str, str], sql: str = "SELECT 1") -> QueryJob:
    resource = {
        "jobReference": {"projectId": "acme", "jobId": name},
        "configuration": {"query": {"query": sql}},
        "status": {"state": "DONE", "errorResult": error, "errors": [error]},
    }
    return QueryJob.from_api_repr(resource, Client("acme", AnonymousCredentials()))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("reason", "message", "retryable"),
    [
        ("invalidQuery", "Transaction is aborted due to concurrent update against table acme:d.t. Transaction ID: x", True),
        ("invalidQuery", "Could not serialize access to table acme:d.t due to concurrent update", True),
        ("resourcesExceeded", "Resources exceeded ...: Too many DML statements outstanding against table acme:d.t, ...", True),
        ("jobBackendError", "The job encountered an error during execution. Retrying the job may solve the problem.", True),
        ("invalidQuery", "The number of staged rows differs from the manifest at [2:3]", True),
        ("invalidQuery", "The tables would not hold every row of the run once at [9:1]", True),
        ("invalidQuery", "Unrecognized name: txt at [1:8]", False),
        ("resourcesExceeded", "Resources exceeded during query execution: Top memory consumer(s): ORDER BY operations", False),
        ("quotaExceeded", "Quota exceeded: Your table exceeded quota for imports or query appends per table.", False),
    ],
)
def test_a_job_that_lost_against_another_one_is_followed_by_one_with_a_new_id(
    reason: str, message: str, retryable: bool
) -> None:
    name = jobs.job_id(SETTINGS.deployment, RUN, "publish", 0)
    service = jobs.Jobs(_Client(name, reason, message), SETTINGS)  # type: ignore[arg-type]
    started: list[str] = []

    state = service.state(name)
    following = service.find_or_start(RUN, "publish", lambda job_id, _: started.append(job_id))

    assert (state.done, state.retryable) == (True, retryable)
    assert started == [following] == [jobs.job_id(SETTINGS.deployment, RUN, "publish", 1)]


class TestReasons:
    """BigQuery's own lists, of a call and of a job that has failed."""

    LISTED: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "bigquery_errors.yaml").read_text())

    def test_every_reason_of_the_error_table_has_its_place_and_no_other_has(self) -> None:
        assert errors.REASONS.keys() == self.LISTED["reasons"].keys()

    @pytest.mark.parametrize(("reason", "kind"), LISTED["reasons"].items())
    def test_a_reason_is_worth_another_try_if_it_passes(self, reason: str, kind: str) -> None:
        assert errors.is_transient(_api_error(api.BadRequest, reason)) == (kind == "passes")  # type: ignore[arg-type]
        assert _state_of(reason, "words").retryable == (kind == "passes")

    @pytest.mark.parametrize(
        ("message", "kind"), [(message, kind) for kind, messages in LISTED["quotas"].items() for message in messages]
    )
    def test_a_quota_that_drains_is_worth_another_try_and_one_of_a_day_is_not(self, message: str, kind: str) -> None:
        assert errors.is_transient(_api_error(api.Forbidden, "quotaExceeded", message)) == (kind == "passes")  # type: ignore[arg-type]
        assert _state_of("quotaExceeded", message).retryable == (kind == "passes")

    @pytest.mark.parametrize(
        ("status", "passes"),
        [(api.BadRequest, False), (api.Forbidden, False), (api.BadGateway, True), (api.TooManyRequests, True)],
    )
    def test_of_a_call_that_fails_for_an_unknown_reason_the_status_decides(
        self, status: Callable[..., Exception], passes: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert errors.is_transient(_api_error(status, "moonIsFull", "howls")) is passes  # type: ignore[arg-type]
        [warning] = caplog.records
        assert (warning.levelname, "'moonIsFull' (howls)" in warning.getMessage()) == ("WARNING", True)

    def test_a_job_that_fails_for_an_unknown_reason_is_followed_by_another(self, caplog: pytest.LogCaptureFixture) -> None:
        assert _state_of("moonIsFull", "howls").retryable
        assert "a reason that nightshift does not know, 'moonIsFull' (howls): another try follows" in caplog.text

    def test_a_reason_that_is_known_or_missing_is_not_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        assert not errors.is_transient(_api_error(api.Forbidden))  # type: ignore[arg-type]
        assert errors.is_transient(_api_error(api.TooManyRequests))  # type: ignore[arg-type]
        assert caplog.text == ""


def _state_of(reason: str, message: str) -> JobState:
    """Of a job that has failed."""
    name = jobs.job_id(SETTINGS.deployment, RUN, "publish", 0)
    return jobs.Jobs(_Client(name, reason, message), SETTINGS).state(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("second", ["RUNNING", "DONE"])
def test_the_effect_of_a_job_is_that_of_its_own_attempt(second: str) -> None:
    """The files of a later attempt, half written, were taken for those of an earlier one that was refused."""
    states = {0: "DONE", 1: second}

    class Service(jobs.Jobs):
        def find(self, name: str) -> Any:
            state = states.get(int(name[-1]))
            return state and SimpleNamespace(state=state, error_result=None, errors=[], job_id=name)

    asked: list[int] = []

    def holds(attempt: int) -> bool:
        asked.append(attempt)
        return attempt == 1

    found = Service(None, SETTINGS).find_or_start(RUN, "extract", lambda *_: None, holds=holds)  # type: ignore[arg-type]

    assert found == jobs.job_id(SETTINGS.deployment, RUN, "extract", 1)
    assert asked == ([0] if second == "RUNNING" else [0, 1])


def test_a_job_that_bigquery_does_not_know_keeps_none_of_the_others_from_being_canceled() -> None:
    canceled: list[str] = []

    def cancel_job(name: str, **_: Any) -> None:
        if name == "gone":
            raise api.NotFound(name)  # type: ignore[no-untyped-call]
        canceled.append(name)

    jobs.Jobs(SimpleNamespace(cancel_job=cancel_job), SETTINGS).cancel(["load-0", "gone", "load-1"])  # type: ignore[arg-type]

    assert canceled == ["load-0", "load-1"]


@pytest.mark.parametrize("since", [(), ("backendError",), ("backendError", "backendError")])
def test_an_export_that_failed_in_an_order_is_not_sorted_by_any_later_job(since: tuple[str, ...]) -> None:
    order = Order(("id",), 1, 1)
    failed = [("resourcesExceeded", f"{order.remark}EXPORT DATA"), *((reason, "EXPORT DATA") for reason in since)]
    submitted: dict[str, str] = {}

    def get_job(name: str, **_: Any) -> QueryJob:
        if (number := int(name[-1])) >= len(failed):
            raise api.NotFound(name)  # type: ignore[no-untyped-call]
        reason, sql = failed[number]
        return _failed_job(name, {"reason": reason, "message": reason}, sql)

    def submit(sql: str, *, job_id: str | None, **_: Any) -> Any:
        submitted[job_id or "dry run"] = sql
        fields = [SchemaField(name, kind) for name, kind in COLUMNS.items()]
        return SimpleNamespace(statement_type="SELECT", schema=fields, referenced_tables=())

    client: Any = SimpleNamespace(get_job=get_job, query=submit)
    name = Warehouse(client, SETTINGS).start_extract(a_spec(), RUN, order=order)

    assert name == jobs.job_id(SETTINGS.deployment, RUN, "extract", len(failed))
    assert submitted == {name: query.plain_export(a_spec(), "lake", RUN.export_pattern(len(failed)))}


class TestPublications:
    """What the statements of publishing are asked with, and what is said of an obstacle."""

    AT = datetime(2026, 11, 21, 3, tzinfo=UTC)
    SETTINGS = Settings("lake", "acme")

    def said(self, *found: dict[str, Any], completes: Redo | None = None) -> str | None:
        return publications.describe(a_spec(), RUN, self.SETTINGS, "2026-11-21T02:00:00+00:00", found, completes)

    def test_parameters(self) -> None:
        found = publications.parameters(
            a_spec(), RUN, self.SETTINGS, "2026-11-21T02:00:00+00:00", Redo("other", "", 9, 1, "third")
        )

        assert {each.name: (each.type_, each.value) for each in found} == {
            "destination": ("STRING", "acme.d.out"),
            "partition_date": ("DATE", "2026-11-20"),
            "partition_time": ("TIMESTAMP", None),
            "partition": ("DATE", "2026-11-20"),
            "bucket": ("STRING", "lake"),
            "job": ("STRING", "job"),
            "run_id": ("STRING", RUN.run_id),
            "asked_at": ("TIMESTAMP", "2026-11-21T02:00:00+00:00"),
            "completes": ("STRING", "other"),
            "shown": ("STRING", "third"),
        }

    def test_nothing_is_said_of_nothing(self) -> None:
        assert self.said() is None

    def test_rows_that_the_job_has_not_published(self) -> None:
        rows: list[dict[str, Any]] = [
            {"problem": "foreign", "job": "other", "run_id": "r1", "asked_at": None, "row_count": 3},
            {"problem": "foreign", "job": None, "run_id": None, "asked_at": None, "row_count": 2},
            {"problem": "later", "job": "job", "run_id": "r2", "asked_at": self.AT, "row_count": 0},
        ]

        said = self.said(*rows)

        assert said is not None
        assert "holds rows that job job has not published (3 of run r1 of job other; 2 without a run)" in said
        assert said.endswith("DELETE FROM `acme.d.out` WHERE `partition_date` = DATE '2026-11-20'")

    def test_a_run_that_was_asked_for_later(self) -> None:
        said = self.said({"problem": "later", "job": "job", "run_id": "r2", "asked_at": self.AT, "row_count": 0})

        assert said is not None
        assert "shows run r2, asked for at 2026-11-21T03:00:00+00:00" in said
        assert "was asked for at 2026-11-21T02:00:00+00:00, and an earlier run never replaces a later one by itself" in said
        assert said.endswith(f"trigger it with republish: {RUN.run_id}")

    def test_a_run_that_was_published_after_the_one_that_a_redo_completes(self) -> None:
        row = {"problem": "overtaken", "job": "job", "run_id": "r2", "asked_at": self.AT, "row_count": 0}

        said = self.said(row, completes=Redo("r1", "", 9, 1, "r1"))

        assert said is not None
        assert "shows run r2, published at 2026-11-21T03:00:00+00:00" in said
        assert "a redo of run r1, was asked for before that" in said
