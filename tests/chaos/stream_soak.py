"""``python -m tests.chaos.stream_soak --messages N --faults M [--seed S]``: faults to all processes of a stream, and the proof.

Real processes: two subscribers, PostgreSQL, the Pub/Sub emulator, and an engine. The engine is a stand-in, since what is proven
here is that no message is lost or doubled, at a rate that a real model does not reach on a CPU. One message in a hundred is
hostile (`tests.chaos.hostile`): it costs itself alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from google.pubsub_v1.types import PubsubMessage

from local.environments import ROOT
from local.ports import new_port
from tests.chaos.hostile import EVERY, Hostile, hostile
from tests.integration.emulators import PostgresServer, PubSubEmulator, start_postgres, start_pubsub
from tests.integration.pubsub import PubSub
from tests.integration.stream.processes import JOB, vector_text

POISON_EVERY: Final = 97
PART: Final = 200
"""Messages in one publish request."""
STUCK_S: Final = 300.0
"""No progress for so long, with every fault over, is no slowness any more."""


POD_MIB: Final = 2048
"""Memory of a subscriber's pod as `nightshift render` writes it."""


class Broken(AssertionError):
    """Something happened that must not, whatever was done to the processes."""


@dataclass
class Report:
    """What a soak did and saw. lost: messages without an outcome; twice: with two; wrong: with a wrong one.

    hostile: messages by kind. died: subscribers that ended though no fault ended them. rss_mib: the most that one of them had.
    """

    seed: int
    messages: int = 0
    hostile: Counter[str] = field(default_factory=Counter)
    died: int = 0
    rss_mib: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    dead: int = 0
    lost: int = 0
    twice: int = 0
    wrong: int = 0
    deliveries: int = 0
    announced_again: int = 0
    seconds: float = 0.0


class Soak:
    """The processes of one stream, in a folder. attempts: that the subscription's own dead-letter policy allows."""

    def __init__(self, folder: Path, seed: int, attempts: int = 100) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self.report = Report(seed)
        self.emulator: PubSubEmulator = start_pubsub(folder)
        self.server: PostgresServer = start_postgres(folder)
        self.pubsub = PubSub(self.emulator)
        self.topic, self.dead_topic, spent_topic = self.pubsub.topic(), self.pubsub.topic(), self.pubsub.topic()
        self.spent_subscription = self.pubsub.subscription(spent_topic)
        policy = {"dead_letter_topic": spent_topic, "max_delivery_attempts": attempts}
        self.subscription = self.pubsub.subscription(self.topic, dead_letter_policy=policy)
        self.dead_subscription = self.pubsub.subscription(self.dead_topic)
        self._engine_port = new_port()
        self._engine = self._start_engine()
        self._file = self._stream_file()
        self._subscribers: list[subprocess.Popen[bytes]] = []
        self._ended: set[int] = set()
        self._hostile = random.Random(seed + 1)
        self.hostile: dict[str, Hostile] = {}
        self.texts: dict[str, str] = {}

    def subscribe(self) -> None:
        """Starts two subscribers."""
        self._subscribers = [self._start_subscriber() for _ in range(2)]

    def close(self) -> None:
        for process in (*self._subscribers, self._engine):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.pubsub.close()
        self.server.stop()
        self.emulator.stop()

    def publish(self, count: int) -> None:
        """So many messages, one in `POISON_EVERY` poisoned. Tries again while Pub/Sub is away: a publisher does."""
        first = len(self.texts)
        texts = [f"{'poison' if n % POISON_EVERY == 13 else 'text'} {n}" for n in range(first, first + count)]
        bodies = [json.dumps({"text": text}).encode() for text in texts]
        ids = self._insist(lambda: self.pubsub.publish(self.topic, *bodies))
        # Of a publish whose reply was lost the messages are there twice, as two messages with the same text.
        self.texts.update(zip(ids, texts, strict=True))
        for number in range(first, first + count):
            if number % EVERY == EVERY // 2:
                self._publish_hostile(hostile(self._hostile, number))

    def _publish_hostile(self, one: Hostile) -> None:
        message = PubsubMessage(data=one.data, attributes=one.attributes)
        (name,) = self._insist(
            lambda: self.pubsub.publisher.publish(topic=self.topic, messages=[message], retry=None).message_ids
        )
        self.hostile[name] = one
        self.report.hostile[one.kind] += 1

    def fault(self) -> None:
        """One, at random, to the end."""
        name = self._rng.choice(list(self._faults()))
        self.report.faults[name] += 1
        self._faults()[name]()
        self.keep()

    def keep(self) -> None:
        """Replaces subscribers that have ended, as a Deployment does."""
        for process in self._subscribers:
            if process.poll() is None:
                self.report.rss_mib = max(self.report.rss_mib, _most_mib(process.pid))
            elif process.pid not in self._ended:
                self.report.died += 1
        self._subscribers = [process if process.poll() is None else self._start_subscriber() for process in self._subscribers]

    def _faults(self) -> Mapping[str, Callable[[], object]]:
        pause = self._rng.uniform(0.1, 3.0)
        return {
            "kill of a subscriber": lambda: self._end(subprocess.Popen.kill),
            "drain of a subscriber": lambda: self._end(subprocess.Popen.terminate),
            "freeze of a subscriber": lambda: self._freeze(self._rng.choice(self._subscribers), 5 * pause),
            "kill of the engine": lambda: self._restart_engine(pause),
            "kill of the database": lambda: self._restart(self.server, pause),
            "kill of Pub/Sub": lambda: self._restart(self.emulator, pause),
            "acknowledgements forgotten": lambda: self._order(kind="drop_acks", times=3),
            "replies lost": lambda: self._order(kind="lose_reply", resource=self.subscription, every=3, times=5),
            "Pub/Sub away": lambda: self._order(kind="unavailable", resource=self.subscription, for_s=pause),
            "delivered twice": lambda: self._order(kind="duplicate", resource=self.subscription, every=7, times=50),
            "leases end": lambda: self._insist(lambda: self.pubsub.advance(15)),
        }

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        process = self._rng.choice(self._subscribers)
        self._ended.add(process.pid)
        how(process)

    def _order(self, **fault: Any) -> None:
        self._insist(lambda: self.pubsub.order(**fault))

    def _insist(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except Exception as error:  # The faults are ours; a real mistake shows as a soak that gets stuck.
                print(f"  again: {type(error).__name__}", flush=True)
                time.sleep(0.3)

    def _freeze(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def _restart(self, part: PostgresServer | PubSubEmulator, pause: float) -> None:
        part.kill()
        time.sleep(pause)
        part.start()

    def _restart_engine(self, pause: float) -> None:
        self.kill_engine()
        time.sleep(pause)
        self.revive_engine()

    def kill_engine(self) -> None:
        self._engine.kill()
        self._engine.wait()

    def revive_engine(self) -> None:
        self._engine = self._start_engine()

    def _start_engine(self) -> subprocess.Popen[bytes]:
        with (self._folder / "engine.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.chaos.stream_engine", str(self._engine_port)]
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def _start_subscriber(self) -> subprocess.Popen[bytes]:
        settings = {
            "PYTHONPATH": str(ROOT / "plugins"),
            "PUBSUB_EMULATOR_HOST": self.emulator.target,
            "NIGHTSHIFT_SINK_URL": self.server.url,
            "ENGINE_URL": f"http://127.0.0.1:{self._engine_port}",
        }
        with (self._folder / "subscribers.log").open("ab") as log:
            command = [sys.executable, "-m", "nightshift.cli", "stream", str(self._file)]
            return subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)

    def _stream_file(self) -> Path:
        stream = {name: dict(value) if isinstance(value, dict) else value for name, value in JOB.items()}
        stream["source"]["subscription"] = self.subscription
        stream["sink"]["table"] = "answers"
        stream["dead_letters"] = {"topic": self.dead_topic}
        stream["engine"] = {"max_num_seqs": 64}
        file = self._folder / "stream.yaml"
        file.write_text(yaml.safe_dump(stream))
        return file

    def finish(self) -> None:
        """Waits until every message is acknowledged. Raises Broken if it does not come to that."""
        self._insist(self.pubsub.end_faults)
        last, since = -1, time.monotonic()
        while left := self._insist(lambda: self.pubsub.statistics(self.subscription)["num_undelivered_messages"]):
            self.keep()
            if left != last:
                last, since = left, time.monotonic()
            if time.monotonic() - since > STUCK_S:
                raise Broken(f"{left} messages are left, and nothing has moved for {STUCK_S:.0f} s")
            time.sleep(0.5)

    def prove(self) -> None:
        """Fills the report, and raises Broken if anything is not as it must be."""
        report = self.report
        with psycopg.connect(self.server.url) as connection:
            answers = connection.execute("SELECT nightshift_message_id, embedding::text FROM answers").fetchall()
            dead = connection.execute("SELECT message_id, reason FROM answers_dead_letters").fetchall()
            own = "SELECT message_id FROM answers_dead_letters WHERE attributes ? 'nightshift_reason'"
            silent = {name for (name,) in connection.execute(own)}
        delivered = self._insist(lambda: self.pubsub.deliveries(self.subscription))
        outcomes = Counter([name for name, _ in answers] + [name for name, _ in dead])
        report.messages, report.answered, report.dead = len(self.texts) + len(self.hostile), len(answers), len(dead)
        report.deliveries = sum(delivered.values())
        report.lost = len((self.texts.keys() | self.hostile.keys()) - outcomes.keys())
        report.twice = sum(count - 1 for count in outcomes.values())
        poisoned = {name for name, text in self.texts.items() if text.startswith("poison")}
        # What a lost reply of the publisher hides is in the tables too, under ids that nobody knows here.
        known = [(name, vector) for name, vector in answers if name in self.texts]
        report.wrong = sum(name in poisoned or vector != vector_text(self.texts[name]) for name, vector in known)
        report.wrong += sum(name in self.texts and (name not in poisoned or reason != "rejected") for name, reason in dead)
        vectors: dict[str, str] = dict(answers)
        reasons: dict[str, str] = dict(dead)
        for name, one in self.hostile.items():
            vector = None if one.text is None else vector_text(one.text)
            report.wrong += (vectors.get(name), reasons.get(name)) != (vector, one.reason)
        announced: Counter[str] = Counter()
        while received := self._insist(lambda: self.pubsub.pull(self.dead_subscription, 1000)):
            announced.update(each.message.attributes["nightshift_message_id"] for each in received)
            self._insist(lambda received=received: self.pubsub.ack(self.dead_subscription, *received))  # type: ignore[misc]
        report.announced_again = announced.total() - len(announced)
        spent = len(self._insist(lambda: self.pubsub.pull(self.spent_subscription, 1000)))
        wanted = {name for name, _ in dead} - silent
        broken = report.lost or report.twice or report.wrong or report.died or report.rss_mib > POD_MIB
        if broken or spent or announced.keys() != wanted:
            raise Broken(f"{report}; announced {len(announced)} of {len(wanted)}; without attempts left {spent}")


def soak(messages: int, faults: int, seed: int, folder: Path) -> Report:
    """Publishes so many messages while so many faults happen. Raises Broken."""
    began = time.monotonic()
    run = Soak(folder, seed)
    try:
        run.subscribe()
        parts = max(1, messages // PART)
        due = 0.0
        for part in range(parts):
            run.publish(messages // parts + (part < messages % parts))
            due += faults / parts
            while run.report.faults.total() < int(due):
                run.fault()
        run.finish()
        run.prove()
    finally:
        run.report.seconds = time.monotonic() - began
        run.close()
    return run.report


def _most_mib(pid: int) -> int:
    """The most memory that a process has had, in MiB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM")), 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.stream_soak", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nightshift-stream-soak-", ignore_cleanup_errors=True) as folder:
        try:
            report = soak(options.messages, options.faults, options.seed, Path(folder))
        except Broken as error:
            print(f"BROKEN: {error}")
            return 1
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
