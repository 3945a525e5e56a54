"""The sink of P13 alone, beside three plain ways into the same table of PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

import psycopg
import uvloop
import yaml
from psycopg import sql

from benchmarks.report import Report, spread
from nightshift.spec import load_stream
from nightshift.stream.messages import Answered, Message
from nightshift.stream.postgres import COLLECT, PostgresSink
from nightshift.stream.schema import Table
from nightshift.tasks.base import load_kind
from tests.integration.emulators import PostgresServer

WIDTH: Final = 8
ROWS: Final = 50_000
TIMES: Final = 5
SETTLE_S: Final = 0.5
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
COLUMNS: Final = ", ".join(
    ["name", "embedding", *(f"nightshift_{each}" for each in ("message_id", "publish_time", "model", "tries", "answered_at"))]
)
KINDS: Final = ("text", "text", "text", "timestamptz", "text", "int", "timestamptz")
CONFLICT: Final = "ON CONFLICT (name) DO UPDATE SET " + ", ".join(
    f"{each} = EXCLUDED.{each}" for each in COLUMNS.split(", ")[1:]
)
METHOD: Final = f"""
The sink alone writes answers of {WIDTH} numbers with a key of text into an empty table, in batches of {COLLECT.rows}, each a
transaction that PostgreSQL has on its disk. `executemany` (psycopg, prepared statements) and one statement over `unnest` upsert
the same columns by the same key; COPY only adds rows. These three check nothing of what a sink promises. CPU of the database is
that of all its processes.
"""

Batch = Sequence[Answered]
T = TypeVar("T")


def measure(report: Report, server: PostgresServer, folder: Path, quick: bool) -> None:
    rows, times = (2_000, 1) if quick else (ROWS, TIMES)
    ways: dict[str, Callable[[PostgresServer, str, Sequence[Batch]], None]] = {
        "executemany": _executemany,
        "unnest": _unnest,
        "COPY": _copy,
        "sink": lambda server, table, batches: _run(_sink(sinks[table], batches)),
    }
    sinks: dict[str, PostgresSink] = {}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    own: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(times):
        for name, way in ways.items():
            table = f"sink_{name.lower()}_{number}"
            sinks[table] = _run(_opened(server, folder, table))
            batches = _batches(rows)
            used, began, clock = _cpu_s(server), time.monotonic(), time.process_time()
            way(server, table, batches)
            rates[name].append(rows / (time.monotonic() - began))
            own[name].append((time.process_time() - clock) / rows * 1e6)
            # Until the server has counted what its process has used that has ended.
            time.sleep(SETTLE_S)
            cpu[name].append((_cpu_s(server) - used) / rows * 1e6)
            with psycopg.connect(server.url, autocommit=True) as connection:
                found = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
                assert found == (rows,), f"{name}: {found}"
                connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(table)))
    ratio = median(rates["sink"]) / median(rates["unnest"])
    report.add("rows/s of the sink alone / one unnest statement", f"{ratio:.2f}", ">= 0.9", ratio >= 0.9)
    for name in ways:
        spent = f"{spread(cpu[name], '.0f')} us of the database's CPU a row, {spread(own[name], '.0f')} of the client's"
        report.note(f"{rows:,} rows, {name}: {spread(rates[name], ',.0f')} rows/s, {spent}")


def _run(work: Coroutine[Any, Any, T]) -> T:
    """As the command does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _batches(rows: int) -> list[Batch]:
    at = datetime(2026, 11, 20, tzinfo=UTC)
    answers = [
        Answered(Message(f"{n}", b"data", {}, "", at), (f"name {n}",), [n / (place + 3) for place in range(WIDTH)], 1)
        for n in range(rows)
    ]
    return [answers[first : first + COLLECT.rows] for first in range(0, rows, COLLECT.rows)]


async def _opened(server: PostgresServer, folder: Path, table: str) -> PostgresSink:
    """Its connection is closed: another loop uses the sink."""
    stream = {
        "job": "bench",
        "owner": "benchmark",
        "source": {"subscription": "texts", "key": ["name"]},
        "task": "embedding",
        "request": {"input": "{{ text }}", "dimensions": WIDTH},
        "model": {"name": "m", "uri": "hf://a/b", "revision": "1"},
        "engine": {"max_num_seqs": 64},
        "latency": {"target": "60s"},
        "sink": {"table": table, "column": "embedding"},
        "dead_letters": {"topic": "dead"},
        "compute": {"profile": "cpu"},
    }
    file = folder / f"{table}.yaml"
    file.write_text(yaml.safe_dump(stream))
    spec = load_stream(file)
    sink = PostgresSink(server.url, Table(spec, load_kind(spec).prediction_type), "m@1")
    await sink.open()
    await sink.close()
    return sink


async def _sink(sink: PostgresSink, batches: Sequence[Batch]) -> None:
    for batch in batches:
        await sink.write(batch)
    await sink.close()


def _rows(batch: Batch) -> list[tuple[Any, ...]]:
    now = datetime.now(UTC)
    return [
        (*each.key, "[" + ",".join(map(repr, each.prediction)) + "]", each.message.id, each.message.published, "m@1", 1, now)
        for each in batch
    ]


def _executemany(server: PostgresServer, table: str, batches: Sequence[Batch]) -> None:
    values = ", ".join("%s::text::vector" if n == 1 else f"%s::{kind}" for n, kind in enumerate(KINDS))
    statement = f"INSERT INTO {table} ({COLUMNS}) VALUES ({values}) {CONFLICT}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        for batch in batches:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(statement.encode(), _rows(batch))


def _unnest(server: PostgresServer, table: str, batches: Sequence[Batch]) -> None:
    arrays = ", ".join(f"%b::{kind}[]" for kind in KINDS)
    rows = f"SELECT a, b::vector, c, d, e, f, g FROM unnest({arrays}) AS u (a, b, c, d, e, f, g)"
    statement = f"INSERT INTO {table} ({COLUMNS}) {rows} {CONFLICT}"
    with psycopg.connect(server.url, autocommit=True, prepare_threshold=None) as connection:
        for batch in batches:
            with connection.transaction():
                connection.execute(statement.encode(), [list(column) for column in zip(*_rows(batch), strict=True)])


def _copy(server: PostgresServer, table: str, batches: Sequence[Batch]) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        for batch in batches:
            with (
                connection.transaction(),
                connection.cursor() as cursor,
                cursor.copy(f"COPY {table} ({COLUMNS}) FROM STDIN".encode()) as copy,
            ):
                for row in _rows(batch):
                    copy.write_row(row)


def _cpu_s(server: PostgresServer) -> float:
    """Of all processes of the server, with those that have ended."""
    spent = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cwd").resolve() == server.folder / "cluster":
                spent += sum(map(int, process.joinpath("stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return spent * TICK_S
