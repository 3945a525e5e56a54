"""The BigQuery Storage API over gRPC: read sessions and write streams."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from google.api_core.exceptions import AlreadyExists, GoogleAPICallError, OutOfRange
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import BigQueryReadClient, BigQueryWriteClient, types
from google.cloud.bigquery_storage_v1.writer import AppendRowsStream
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from local.bigquery.tests.support import DAY, Warehouse, records

# The client library would rather have its dataframes read by pandas-gbq.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")]


def row_message() -> tuple[Any, descriptor_pb2.DescriptorProto]:
    """The protocol buffer class of a row, and its description for the writer's schema."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="row.proto", package="rows", syntax="proto2")
    message = file.message_type.add(name="Row")
    message.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    message.field.add(name="text", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    message.field.add(name="embedding", number=3, type=field.TYPE_DOUBLE, label=field.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("rows.Row")), message


ROW, ROW_DESCRIPTION = row_message()


def read_session(
    client: BigQueryReadClient,
    warehouse: Warehouse,
    streams: int = 1,
    data_format: Any = types.DataFormat.ARROW,
    **options: Any,
) -> types.ReadSession:
    table = f"projects/{warehouse.client.project}/datasets/{warehouse.dataset}/tables/t"
    session = types.ReadSession(
        table=table, data_format=data_format, read_options=types.ReadSession.TableReadOptions(**options)
    )
    return client.create_read_session(
        parent=f"projects/{warehouse.client.project}", read_session=session, max_stream_count=streams
    )


def read(client: BigQueryReadClient, session: types.ReadSession, offset: int = 0) -> list[int]:
    """The ids of all rows, sorted by stream and position; from ``offset`` on in each stream."""
    ids: list[int] = []
    for stream in session.streams:
        rows = client.read_rows(stream.name, offset=offset).rows(session)  # type: ignore[no-untyped-call]
        for page in rows.pages:
            ids += page.to_arrow().column("id").to_pylist()
    return ids


class Writer:
    """A table `t` and the requests that write to it."""

    def __init__(self, client: BigQueryWriteClient, warehouse: Warehouse) -> None:
        self.client, self.warehouse = client, warehouse
        schema = [
            bigquery.SchemaField("id", "INT64"),
            bigquery.SchemaField("text", "STRING"),
            bigquery.SchemaField("embedding", "FLOAT64", "REPEATED"),
        ]
        warehouse.client.create_table(bigquery.Table(warehouse.name("t"), schema=schema))
        self.table = client.table_path(warehouse.client.project, warehouse.dataset, "t")

    def stream(self, kind: Any = types.WriteStream.Type.PENDING) -> str:
        name: str = self.client.create_write_stream(parent=self.table, write_stream=types.WriteStream(type_=kind)).name
        return name

    def request(self, stream: str, first: int, end: int, offset: int | None = None) -> types.AppendRowsRequest:
        request = types.AppendRowsRequest(write_stream=stream)
        request.proto_rows.writer_schema = types.ProtoSchema(proto_descriptor=ROW_DESCRIPTION)
        serialized = [ROW(id=i, text=f"text {i}", embedding=[float(i)]).SerializeToString() for i in range(first, end)]
        request.proto_rows.rows = types.ProtoRows(serialized_rows=serialized)
        if offset is not None:
            request.offset = offset  # type: ignore[assignment] # the library wraps it
        return request

    def append(self, requests: Iterable[types.AppendRowsRequest]) -> list[types.AppendRowsResponse]:
        return list(self.client.append_rows(iter(list(requests))))

    def commit(self, *streams: str) -> types.BatchCommitWriteStreamsResponse:
        request = types.BatchCommitWriteStreamsRequest(parent=self.table, write_streams=list(streams))
        return self.client.batch_commit_write_streams(request)

    def finalize(self, stream: str) -> int:
        count: int = self.client.finalize_write_stream(name=stream).row_count
        return count

    @property
    def rows(self) -> int:
        return self.warehouse.count("t")


@pytest.fixture
def writer(bigquery_write_client: BigQueryWriteClient, warehouse: Warehouse) -> Writer:
    return Writer(bigquery_write_client, warehouse)


@pytest.mark.gate
def test_a_table_is_read_as_arrow(warehouse: Warehouse, bigquery_read_client: BigQueryReadClient) -> None:
    warehouse.load("t", records(0, 100))

    table = warehouse.client.list_rows(warehouse.client.get_table(warehouse.name("t"))).to_arrow(
        bqstorage_client=bigquery_read_client
    )

    assert sorted(table.column("id").to_pylist()) == list(range(100))
    assert table.schema.field("day").type == pa.date32()
    assert table.schema.field("embedding").type.value_type == pa.float64()


def test_a_query_is_read_as_a_dataframe(warehouse: Warehouse, bigquery_read_client: BigQueryReadClient) -> None:
    warehouse.load("t", records(0, 100))

    rows = warehouse.start(f"SELECT id, text FROM `{warehouse.name('t')}` ORDER BY id").result()
    frame = rows.to_dataframe(bqstorage_client=bigquery_read_client)

    assert frame["text"].tolist() == [f"text {i}" for i in range(100)]


def test_a_session_filters_rows_and_columns_over_several_streams(
    warehouse: Warehouse, bigquery_read_client: BigQueryReadClient
) -> None:
    warehouse.load("t", records(0, 100) + records(100, 200, DAY + datetime.timedelta(days=1)))

    session = read_session(
        bigquery_read_client, warehouse, 4, selected_fields=["id"], row_restriction='id < 150 AND day = "2026-01-01"'
    )

    assert sorted(read(bigquery_read_client, session)) == list(range(100))
    assert pa.ipc.read_schema(pa.py_buffer(session.arrow_schema.serialized_schema)).names == ["id"]


@pytest.mark.gate
def test_a_stream_is_resumed_at_an_offset(warehouse: Warehouse, bigquery_read_client: BigQueryReadClient) -> None:
    warehouse.load("t", records(0, 120))
    session = read_session(bigquery_read_client, warehouse)

    everything = read(bigquery_read_client, session)

    assert len(everything) == 120
    assert read(bigquery_read_client, session, offset=50) == everything[50:]


def test_a_session_sees_the_table_as_it_was(warehouse: Warehouse, bigquery_read_client: BigQueryReadClient) -> None:
    warehouse.load("t", records(0, 10))
    session = read_session(bigquery_read_client, warehouse)
    warehouse.load("t", records(10, 20))

    assert sorted(read(bigquery_read_client, session)) == list(range(10))


def test_avro_blocks_count_their_rows(warehouse: Warehouse, bigquery_read_client: BigQueryReadClient) -> None:
    warehouse.load("t", records(0, 10))

    session = read_session(bigquery_read_client, warehouse, data_format=types.DataFormat.AVRO, selected_fields=["id"])
    streams = [bigquery_read_client.read_rows(stream.name) for stream in session.streams]  # type: ignore[no-untyped-call]
    replies = [reply for stream in streams for reply in stream]

    assert '"id"' in session.avro_schema.schema
    assert sum(reply.row_count for reply in replies) == 10
    assert b"".join(reply.avro_rows.serialized_binary_rows for reply in replies) != b""


@pytest.mark.gate
def test_pending_streams_appear_together_at_commit(writer: Writer) -> None:
    streams = [writer.stream(), writer.stream()]
    for number, stream in enumerate(streams):
        first = number * 100
        writer.append(writer.request(stream, first + k, first + k + 50, k) for k in (0, 50))
        assert writer.finalize(stream) == 100
    before = writer.rows

    committed = writer.commit(*streams)

    assert not committed.stream_errors
    assert (before, writer.rows) == (0, 200)


@pytest.mark.gate
def test_a_repeated_append_is_refused(writer: Writer) -> None:
    stream = writer.stream()
    writer.append([writer.request(stream, 0, 10, 0)])

    assert append_error(writer, writer.request(stream, 0, 10, 0)) == "ALREADY_EXISTS"

    writer.finalize(stream)
    writer.commit(stream)
    assert writer.rows == 10


def test_an_append_beyond_the_end_is_refused(writer: Writer) -> None:
    assert append_error(writer, writer.request(writer.stream(), 0, 10, 50)) == "OUT_OF_RANGE"


def append_error(writer: Writer, request: types.AppendRowsRequest) -> str:
    """The name of the error, whether the call fails or the reply carries it."""
    try:
        (reply,) = writer.append([request])
    except AlreadyExists:
        return "ALREADY_EXISTS"
    except OutOfRange:
        return "OUT_OF_RANGE"
    return {6: "ALREADY_EXISTS", 11: "OUT_OF_RANGE"}[reply.error.code]


def test_a_stream_commits_once(writer: Writer) -> None:
    stream = writer.stream()
    writer.append([writer.request(stream, 0, 10, 0)])
    writer.finalize(stream)
    writer.commit(stream)

    assert commit_is_refused(writer, stream)
    assert writer.rows == 10


def test_an_open_stream_does_not_commit(writer: Writer) -> None:
    stream = writer.stream()
    writer.append([writer.request(stream, 0, 10, 0)])

    assert commit_is_refused(writer, stream)
    assert writer.rows == 0


def commit_is_refused(writer: Writer, stream: str) -> bool:
    try:
        return bool(writer.commit(stream).stream_errors)
    except GoogleAPICallError:
        return True


def test_a_committed_stream_shows_rows_at_once_and_only_once(writer: Writer) -> None:
    stream = writer.stream(types.WriteStream.Type.COMMITTED)
    writer.append([writer.request(stream, 0, 10, 0)])
    at_once = writer.rows

    assert append_error(writer, writer.request(stream, 0, 10, 0)) == "ALREADY_EXISTS"
    assert (at_once, writer.rows) == (10, 10)


def test_the_default_stream(writer: Writer) -> None:
    writer.append([writer.request(f"{writer.table}/streams/_default", 0, 10)])

    assert writer.rows == 10


def test_rows_in_arrow(writer: Writer) -> None:
    stream = writer.stream()
    table = pa.table({"id": [1, 2], "text": ["a", "b"], "embedding": pa.array([[1.0], [2.0]], pa.list_(pa.float64()))})
    request = types.AppendRowsRequest(write_stream=stream, offset=0)
    request.arrow_rows.writer_schema.serialized_schema = table.schema.serialize().to_pybytes()
    request.arrow_rows.rows.serialized_record_batch = table.to_batches()[0].serialize().to_pybytes()

    writer.append([request])
    writer.finalize(stream)
    writer.commit(stream)

    rows = writer.warehouse.rows(f"SELECT * FROM `{writer.warehouse.name('t')}` ORDER BY id")
    assert rows == [(1, "a", [1.0]), (2, "b", [2.0])]


def test_the_client_librarys_own_stream(writer: Writer) -> None:
    stream = writer.stream()
    template = types.AppendRowsRequest(write_stream=stream)
    template.proto_rows.writer_schema = types.ProtoSchema(proto_descriptor=ROW_DESCRIPTION)
    appender = AppendRowsStream(writer.client, template)

    futures = []
    for first in (0, 10, 20):
        request = types.AppendRowsRequest(offset=first)
        request.proto_rows.rows = writer.request(stream, first, first + 10).proto_rows.rows
        futures.append(appender.send(request))
    for future in futures:
        future.result(timeout=600)  # type: ignore[no-untyped-call]
    appender.close()
    writer.finalize(stream)
    writer.commit(stream)

    assert writer.rows == 30
