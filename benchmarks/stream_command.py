"""P13: a stream, compared with the nightly driver on the same engine and with a subscriber in the usual shape."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import psycopg
import yaml

from benchmarks import long_tailed, sink_rate
from benchmarks.long_tailed import SEATS
from benchmarks.processes import NIGHTSHIFT, Canned, Client, Driver, Ended, ending
from benchmarks.report import PLUGINS, Report, spread
from benchmarks.runs import prepare
from tests.integration.emulators import PostgresServer, PubSubEmulator, start_postgres, start_pubsub
from tests.integration.pubsub import PubSub

ROWS: Final = 6_000
TIMES: Final = 3
FLUSH_S: Final = 0.5
SERVICE_S: Final = 0.2
LATENCY_ROWS: Final = 3_000
SEATS_OF_ENGINES: Final = {8: 1_500, 64: 8_000, 512: 24_000}
"""Seats, and messages for an engine with so many."""
SEATS_S: Final = 0.04
SEATS_ROWS: Final = 8
PULL_S: Final = 0.05
METHOD_OF_STREAM: Final = """
The engine is the canned one of P5 and P10: 64 seats, 0.5 ms a token, chat answers of exponential length, 338 tokens on
average. The stream is `nightshift stream` between our Pub/Sub emulator and a real PostgreSQL. The nightly driver reads the
same texts from Parquet in a folder. The peer (`benchmarks/pull_wait.py`) is our own re-implementation of the shape of the
public reference subscriber, not its code: it pulls 64, waits for the slowest, acknowledges in one call, and stores nothing.
The engine counts the throughput at a full backlog, from the first request that reaches it to its last answer. CPU is that of
the client process, with its start and from its first request on: a subscriber runs for days. Latency: embeddings at half of
what the engine can answer (16 seats, 0.2 s a request), with a flush of 0.5 s, from publish time to the database's own clock
at the commit. The bound is flush + 2 x service time. The sides take turns; medians are compared. Seats: embeddings in requests
of 8 rows that take 40 ms, `latency.flush` as it is by default, a full backlog, replies of about 25 messages that come after
50 ms; the goal is what the engine could answer if it never waited.
"""
METHOD: Final = f"{METHOD_OF_STREAM}{sink_rate.METHOD}"


@dataclass(frozen=True)
class Ground:
    """What all sides share."""

    emulator: PubSubEmulator
    server: PostgresServer
    pubsub: PubSub


def measure(report: Report, folder: Path, quick: bool) -> None:
    emulator, server = start_pubsub(folder), start_postgres(folder)
    ground = Ground(emulator, server, PubSub(emulator))
    try:
        _throughput(report, ground, folder, 400 if quick else ROWS, 1 if quick else TIMES)
        _latency(report, ground, folder, 200 if quick else LATENCY_ROWS)
        sink_rate.measure(report, server, folder, quick)
        _seats(report, ground, folder, 0.1 if quick else 1.0, 1 if quick else TIMES)
    finally:
        ground.pubsub.close()
        server.stop()
        emulator.stop()


def _throughput(report: Report, ground: Ground, folder: Path, rows: int, times: int) -> None:
    texts = [f"text {n} {tokens}" for n, tokens in enumerate(long_tailed.lengths(rows, seed=13))]
    rates: dict[str, list[float]] = {"stream": [], "driver": [], "peer": []}
    cpu: dict[str, list[float]] = {"stream": [], "driver": [], "peer": []}
    working: dict[str, list[float]] = {"stream": [], "driver": [], "peer": []}
    for number in range(times):
        for name in rates:
            with long_tailed.engine() as engine:
                log = folder / f"{name}-{number}.log"
                ended = {"stream": _stream, "driver": _driver, "peer": _peer}[name](ground, folder, engine, texts, log)
                counts = engine.counts()
            rates[name].append(rows / (counts["last"] - counts["first"]))
            cpu[name].append(ended.cpu_s)
            working[name].append(ended.cpu_since(counts["first"]))
    ratio = median(rates["stream"]) / median(rates["driver"])
    report.add("rows/s at full backlog: stream / nightly driver", f"{ratio:.3f}", ">= 0.95", ratio >= 0.95)
    ratio = median(rates["stream"]) / median(rates["peer"])
    report.add("rows/s with long-tailed answers: stream / peer", f"{ratio:.2f}", ">= 1.5", ratio >= 1.5)
    ratio = median(cpu["stream"]) / median(cpu["peer"])
    report.add("CPU of the client: stream / peer", f"{ratio:.2f}", "<= 0.2", ratio <= 0.2)
    ratio = median(working["stream"]) / median(working["peer"])
    report.add("the same without its start", f"{ratio:.2f}", "<= 0.2", ratio <= 0.2)
    for name in rates:
        spent = f"{spread(cpu[name], '.1f')} CPU s, {spread(working[name], '.1f')} of them after its start"
        report.note(f"{rows:,} rows, {name}: {spread(rates[name], ',.0f')} rows/s, {spent}")


def _stream(ground: Ground, folder: Path, engine: Canned, texts: Sequence[str], log: Path) -> Ended:
    topic, subscription = ground.pubsub.pair()
    _publish(ground, topic, texts)
    return _run_stream(ground, folder, engine.url, subscription, log, task="chat", request={"user": "{{ text }}"})


def _run_stream(
    ground: Ground,
    folder: Path,
    url: str,
    subscription: str,
    log: Path,
    *,
    over: threading.Event | None = None,
    **changes: Any,
) -> Ended:
    """Runs a subscriber until everything is acknowledged (and `over` is set)."""
    table = f"t_{time.monotonic_ns()}"
    stream = {
        "job": "bench",
        "owner": "benchmark",
        "source": {"subscription": subscription},
        "model": {"name": "m", "uri": "hf://a/b", "revision": "1"},
        "engine": {"max_num_seqs": SEATS},
        "latency": {"target": "60s", "flush": f"{int(FLUSH_S * 1000)}ms"},
        "sink": {"table": table, "column": "answer"},
        "dead_letters": {"topic": ground.pubsub.topic()},
        "compute": {"profile": "cpu"},
        **changes,
    }
    file = folder / f"{table}.yaml"
    file.write_text(yaml.safe_dump(stream))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": PLUGINS,
        "PUBSUB_EMULATOR_HOST": ground.emulator.target,
        "NIGHTSHIFT_SINK_URL": ground.server.url,
        "ENGINE_URL": url,
    }
    client = Client([*NIGHTSHIFT, "stream", str(file)], environment, log)
    with ending(client):
        while (over and not over.is_set()) or ground.pubsub.statistics(subscription)["num_undelivered_messages"]:
            if client.process.poll() is not None:
                raise RuntimeError(f"the subscriber ended: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        client.process.terminate()
        return client.end()


def _seats(report: Report, ground: Ground, folder: Path, part: float, times: int) -> None:
    """The same stream before engines of different size."""
    ground.pubsub.order(kind="delay", method="Pull", delay_s=PULL_S)
    for seats, messages in SEATS_OF_ENGINES.items():
        rates, cpu, peaks = [], [], []
        count = int(messages * part)
        for number in range(times):
            with Canned(seats=seats, seconds=SEATS_S, width=8) as engine:
                topic, subscription = ground.pubsub.pair(ack_deadline_seconds=600)
                _publish(ground, topic, [f"text {n}" for n in range(count)])
                request = {"input": "{{ text }}", "rows_per_request": SEATS_ROWS, "dimensions": 8}
                changes: dict[str, Any] = {"task": "embedding", "request": request, "latency": {"target": "60s"}}
                changes["engine"] = {"max_num_seqs": seats}
                log = folder / f"seats-{seats}-{number}.log"
                ended = _run_stream(ground, folder, engine.url, subscription, log, **changes)
                counts = engine.counts()
            rates.append(count / (counts["last"] - counts["first"]))
            cpu.append(ended.cpu_since(counts["first"]) / count * 1e6)
            peaks.append(ended.peak_mib)
        most = seats / SEATS_S
        report.add(f"messages/s at {seats} seats / what the engine can answer", f"{median(rates) / most:.2f}")
        spent = f"{spread(cpu, ',.0f')} us of the subscriber's CPU each, peak {max(peaks):.0f} MiB"
        report.note(f"{count:,} messages, {seats} seats: {spread(rates, ',.0f')}/s of {most:,.0f}, {spent}")
    ground.pubsub.end_faults()


def _driver(ground: Ground, folder: Path, engine: Canned, texts: Sequence[str], log: Path) -> Ended:
    run = prepare(
        folder / log.stem,
        len(texts),
        chunk_rows=256,
        texts=lambda ordinals: [texts[n] for n in ordinals],
        task="chat",
        request={"user": "{{ text }}"},
        model__name="m",
        engine__max_num_seqs=SEATS,
    )
    ended = Driver(run.url, engine.url, log).complete()
    run.check(ended.code)
    return ended


def _peer(ground: Ground, folder: Path, engine: Canned, texts: Sequence[str], log: Path) -> Ended:
    # Ten minutes: nothing extends its leases, and what comes again would only slow it down.
    topic, subscription = ground.pubsub.pair(ack_deadline_seconds=600)
    _publish(ground, topic, texts)
    environment = {**os.environ, "PUBSUB_EMULATOR_HOST": ground.emulator.target}
    command = [sys.executable, "-m", "benchmarks.pull_wait", subscription, engine.url, str(len(texts))]
    ended = Client(command, environment, log.with_suffix(".answers")).complete()
    assert ended.code == 0, "the peer failed"
    return ended


def _publish(ground: Ground, topic: str, texts: Sequence[str]) -> None:
    for first in range(0, len(texts), 500):
        ground.pubsub.publish(topic, *(json.dumps({"text": text}).encode() for text in texts[first : first + 500]))


def _latency(report: Report, ground: Ground, folder: Path, rows: int) -> None:
    seats = 16
    rate = seats / SERVICE_S / 2
    topic, subscription = ground.pubsub.pair()
    over = threading.Event()

    def traffic() -> None:
        began = time.monotonic()
        for n in range(rows):
            time.sleep(max(0.0, began + n / rate - time.monotonic()))
            ground.pubsub.publish(topic, json.dumps({"text": f"text {n}"}).encode())
        over.set()

    with Canned(seats=seats, seconds=SERVICE_S, width=8) as engine:
        threading.Thread(target=traffic, daemon=True).start()
        request = {"input": "{{ text }}", "rows_per_request": 8, "dimensions": 8}
        changes = {"task": "embedding", "request": request, "engine": {"max_num_seqs": seats}}
        _run_stream(ground, folder, engine.url, subscription, folder / "latency.log", over=over, **changes)
    with psycopg.connect(ground.server.url) as connection:
        (table,) = connection.execute("SELECT max(tablename) FROM pg_tables WHERE tablename ~ '^t_[0-9]+$'").fetchone() or ("",)
        found = connection.execute(
            f"SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP "
            f"(ORDER BY extract(epoch FROM nightshift_answered_at - nightshift_publish_time)::float8), count(*) FROM {table}"
        ).fetchone()
    assert found is not None
    (p50, p99), count = found
    assert count == rows, f"{count} of {rows} rows"
    bound = FLUSH_S + 2 * SERVICE_S
    report.add("p99 latency at half load / (flush + 2 x service time)", f"{p99 / bound:.2f}", "<= 1", p99 <= bound)
    report.note(f"{rows:,} messages at {rate:.0f} a second: p50 {p50:.2f} s, p99 {p99:.2f} s, bound {bound:.2f} s")
