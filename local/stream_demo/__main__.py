"""``python -m local.stream_demo``: a stream from its topic to a search. Exit codes: 0 success, 1 something was lost or doubled.

Runs in the environment ``stream``. Everything that it starts ends with it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import yaml
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from local.demo.clock import Clock
from local.demo.packages import packages
from local.environments import ROOT, environment_dir
from local.stack import Stack, StackError
from local.stack.environment import PROJECT
from local.stream_demo.database import Database, Proof
from local.stream_demo.engine import Engine, EngineFailed
from local.stream_demo.replicas import Replicas
from local.stream_demo.traffic import Traffic
from nightshift.spec import load

JOB: Final = ROOT / "dags" / "jobs" / "package-embeddings.yaml"
"""The nightly job of the same model."""
STREAM: Final = ROOT / "streams" / "package-texts.yaml"
TABLE: Final = "stream_demo.package_vectors"
RATE: Final = 12.0
REPLICAS: Final = 2
LINE_S: Final = 2.0
PATIENCE_S: Final = 900.0
QUESTIONS: Final = ("HTTP client", "parse yaml", "work with dates and time zones")


class Queue:
    """The demo's topics and subscription in the stack's Pub/Sub."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        channel = grpc.insecure_channel(environment["PUBSUB_EMULATOR_HOST"])
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        self._control = environment["NIGHTSHIFT_PUBSUB_CONTROL"]
        name = f"demo-{uuid.uuid4().hex[:8]}"
        self.topic, self.dead_topic = f"projects/{PROJECT}/topics/{name}", f"projects/{PROJECT}/topics/{name}-dead"
        self.subscription = f"projects/{PROJECT}/subscriptions/{name}"
        self.publisher.create_topic(name=self.topic)
        self.publisher.create_topic(name=self.dead_topic)
        subscriber.create_subscription(name=self.subscription, topic=self.topic)

    @property
    def backlog(self) -> int:
        with urllib.request.urlopen(f"{self._control}/subscriptions", timeout=10) as reply:
            return int(json.load(reply)[self.subscription]["num_undelivered_messages"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local.stream_demo", description=__doc__)
    parser.add_argument("--state", type=Path, default=ROOT / ".state-stream", metavar="DIR", help="default: %(default)s")
    options = parser.parse_args()
    clock = Clock()
    try:
        with Stack(options.state, parts=("pubsub", "postgres"), say=clock.say) as stack:
            return _run(clock, stack.environment(), stack.state)
    except (StackError, EngineFailed) as error:
        print(error, file=sys.stderr)
        return 1


def _run(clock: Clock, environment: Mapping[str, str], folder: Path) -> int:
    rows = list(packages(environment_dir(name) for name in ("stream", "emulators", "server")))
    database, queue = Database(environment["NIGHTSHIFT_SINK_URL"], TABLE), Queue(environment)
    database.clear()
    with Engine(load(JOB), folder / "vllm.log") as engine:
        clock.say("vLLM starts; meanwhile nobody pulls")
        engine.await_health()
        clock.say(f"vLLM is up; {len(rows)} package descriptions will be published at {RATE:.0f} a second, rising and falling")
        traffic = Traffic(queue.publisher, queue.topic, rows, RATE)
        variables = {**environment, "ENGINE_URL": engine.url}
        with Replicas(_stream_file(folder, queue), variables, folder, REPLICAS) as replicas:
            traffic.start()
            _watch(clock, traffic, queue, database, replicas)
            clock.say(f"subscribers drained, exit codes {replicas.drain()}")
        proof = database.prove(traffic.ids)
        _search(engine.url, database)
    for reason, count in database.reasons():
        print(f"  dead letters  {count} ({reason})")
    outcomes = f"answered {proof.answered}, dead letters {proof.dead}, lost {proof.lost}, twice {proof.twice}"
    print(f"  published {proof.published}, {outcomes}")
    return 0 if _whole(proof) else 1


def _whole(proof: Proof) -> bool:
    return not proof.lost and not proof.twice and proof.answered + proof.dead == proof.published > 0


def _stream_file(folder: Path, queue: Queue) -> Path:
    """The example with the demo's own names."""
    stream: dict[str, Any] = yaml.safe_load(STREAM.read_text())
    stream["source"] |= {"subscription": queue.subscription}
    stream["sink"]["table"] = TABLE
    stream["dead_letters"]["topic"] = queue.dead_topic
    file = folder / "stream.yaml"
    file.write_text(yaml.safe_dump(stream, sort_keys=False))
    return file


def _watch(clock: Clock, traffic: Traffic, queue: Queue, database: Database, replicas: Replicas) -> None:
    """Until nothing is left, a line every now and then; in the middle one subscriber is killed."""
    killed, before, deadline = False, 0, time.monotonic() + PATIENCE_S
    while not (traffic.over and queue.backlog == 0) and time.monotonic() < deadline:
        time.sleep(LINE_S)
        progress = database.progress()
        latency = "-" if progress.p50_s is None else f"{progress.p50_s:.2f} s, p99 {progress.p99_s:.2f} s"
        clock.say(
            f"published {len(traffic.ids):4}  backlog {queue.backlog:4}  answered {progress.answered:4} "
            f"({(progress.answered - before) / LINE_S:4.0f}/s)  latency p50 {latency}  subscribers {replicas.alive}"
        )
        before = progress.answered
        if not killed and traffic.halfway:
            killed = True
            replicas.kill_one()
            clock.say("kill -9 of a subscriber; its messages come again when their leases end")
        else:
            replicas.keep()


def _search(engine_url: str, database: Database) -> None:
    body = json.dumps({"model": load(JOB).model.name, "input": list(QUESTIONS)}).encode()
    request = urllib.request.Request(f"{engine_url}/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        vectors = [item["embedding"] for item in json.load(reply)["data"]]
    for question, vector in zip(QUESTIONS, vectors, strict=True):
        print(f"  {question}")
        for name, version, similarity in database.nearest(vector):
            print(f"    {similarity:.3f}  {name} {version}")


if __name__ == "__main__":
    sys.exit(main())
