"""Twenty hostile job files beside a good one, as Airflow's own DagBag parses them: only those twenty are missing.

A process of its own has 1 GiB and 30 s of CPU for both DAG files, without anything remembered of an earlier parse. Some of
the files are valid as YAML and as jobs, and would break what Airflow does with their DAG.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.unit.spec_file import job

pytestmark = [pytest.mark.integration, pytest.mark.gate]

ROOT = Path(__file__).resolve().parents[3]
SECONDS: Final = 30
BYTES: Final = 1 << 30
GOOD: Final = "good"
OPERATORS: Final = "mail: {notifier: tests.unit.notices.Blackboard, arguments: {text: fixed}, jobs_may_set: [colour]}\n"
SMTP: Final = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"
SECRETS: Final = "{{ conn.google_cloud_default.extra }} {{ var.value.deploy_token }}"

PARSE: Final = """
import json, resource, sys
from pathlib import Path

import msgspec
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

bag = DagBag(dag_folder=sys.argv[1])
# What the DAG processor sends to its manager: one DAG that cannot be stored takes all of its file with it.
stored = {name: len(msgspec.msgpack.encode(DagSerialization.to_dict(dag))) for name, dag in bag.dags.items()}
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
seconds = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
print(json.dumps({"dags": sorted(stored), "errors": bag.import_errors, "peak": peak, "s": seconds}))
"""


def text(**changes: Any) -> str:
    return yaml.safe_dump(job(**changes), sort_keys=False, width=10**9)


def told(event: str, **said: Any) -> str:
    return text(notify={event: said})


def query(of: str) -> str:
    return text(source__query=of)


def files() -> Mapping[str, str | bytes]:
    """By the name of the file, which begins before the good one's."""
    columns = ", ".join(f"abcdefghij{number:04}" for number in range(7000))
    return {
        "a-exit": told("failed", notifier="nightshift.cli.__main__.X"),
        "a-exit-too": told("late", notifier="typer.__main__.X"),
        "b-zero": told("failed", notifier=SMTP, arguments={"to": "x@example.com", "template": "/dev/zero"}),
        "c-secrets": told("failed", notifier="mail", arguments={"colour": SECRETS}),
        "d-fixed": told("failed", notifier="mail", arguments={"files": ["/etc/passwd"], "text": "mine"}),
        "e-cron": text(schedule="0 0 29 2 1#5", notify={"late": {"notifier": "mail"}}),
        "f-year": text(start_date="9999-12-31", notify={"late": {"notifier": "mail"}}),
        "g-bomb": "a: &a [x, x]\nb: &b [*a, *a]\njob: *b\n",
        "h-deep": "job: h\na: " + "[" * 100_000,
        "i-values": "job: i\na: [" + "[]," * 10_001 + "]\n",
        "j-bytes": text().encode() + b"\nx: \xff\xfe\n",
        "k-name": text(job=GOOD, destination__table="c.k"),
        "l-table": text(job="l-other"),
        "m-surrogate": text(description="@").replace("'@'", '"\\ud800"'),
        "n-number": text(engine__max_num_seqs="@").replace("'@'", "9" * 5000),
        "o-joins": query("SELECT * FROM t" + ", t" * 40_000 + " WHERE d = @partition"),
        "p-arrays": query("SELECT " + "ARRAY[" * 30 + "1" + "]" * 30 + " FROM t WHERE d = @partition"),
        "q-columns": text(
            source__query=f"SELECT {columns} FROM t WHERE d = @partition", source__key=[f"abcdefgh{n:05}x" for n in range(60)]
        ),
        "r-filters": text(request__input='{{ summarie }}{{ "x"|center(7000000)|upper|lower|title|length }}' * 1500),
        "s-table": text(job="s", destination__table="d" * 1000 + "." + "t" * 1000),
    }


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    dags = tmp_path / "dags"
    (dags / "jobs").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    for name in ("batch_inference.py", "broken_jobs.py"):
        shutil.copy(ROOT / "dags" / name, dags)
    (tmp_path / "notifiers.yaml").write_text(OPERATORS)
    (dags / "jobs" / f"{GOOD}.yaml").write_text(
        text(job=GOOD, notify={"failed": {"notifier": "mail", "arguments": {"colour": "{{ error }}"}}})
    )
    return tmp_path


def parse(deployment: Path) -> dict[str, Any]:
    """What a process with the limits finds, as the DAG processor's do."""
    limits = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({BYTES}, {BYTES}))\n"
    environment = {
        **os.environ,
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "CRITICAL",
        "NIGHTSHIFT_BUCKET": "runs",
        "NIGHTSHIFT_NOTIFIERS": str(deployment / "notifiers.yaml"),
        "NIGHTSHIFT_PROJECT": "acme",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "plugins"), str(ROOT)]),
        "TMPDIR": str(deployment / "tmp"),
    }
    done = subprocess.run(
        [sys.executable, "-c", limits + PARSE, str(deployment / "dags")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_only_the_hostile_files_are_missing(deployment: Path) -> None:
    jobs = deployment / "dags" / "jobs"
    hostile = files()
    for name, content in hostile.items():
        (jobs / f"{name}.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    (jobs / "t-zero.yaml").symlink_to("/dev/zero")
    (jobs / "u-loop.yaml").symlink_to("u-loop.yaml")
    os.mkfifo(jobs / "v-pipe.yaml")
    found = parse(deployment)

    assert found["dags"] == [GOOD], found["errors"]
    ((file, message),) = found["errors"].items()
    assert file.endswith("broken_jobs.py")
    for name in (*hostile, "t-zero", "u-loop", "v-pipe"):
        assert f"dags/jobs/{name}.yaml" in message
    assert f"dags/jobs/{GOOD}.yaml:" not in message
    assert found["peak"] < BYTES
    assert found["s"] < SECONDS
    # The files have not changed, so a second parse costs none of their time.
    assert parse(deployment)["dags"] == [GOOD]


def test_one_whose_dag_cannot_be_made_is_named_by_the_other_file(deployment: Path) -> None:
    """Something that no check foresees: as if Airflow refused the DAG of one job."""
    jobs = deployment / "dags" / "jobs"
    (jobs / "odd.yaml").write_text(text(job="odd", destination__table="c.odd"))
    source = deployment / "dags" / "batch_inference.py"
    source.write_text(source.read_text().replace("dag_id=spec.job,", 'dag_id=spec.job.replace("odd", "o d d"),'))
    parse(deployment)
    found = parse(deployment)  # Airflow may read broken_jobs.py first.

    assert found["dags"] == [GOOD]
    ((file, message),) = found["errors"].items()
    assert file.endswith("broken_jobs.py")
    assert "dags/jobs/odd.yaml: Airflow cannot make its DAG: " in message
