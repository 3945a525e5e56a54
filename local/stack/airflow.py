"""Airflow's settings and health. All settings are environment variables; no file of Airflow's is edited.

``airflow standalone`` starts its components and never checks them again: a scheduler killed with SIGKILL stays a zombie, its
workers stay alive, and standalone keeps running (Airflow 3.3.2, module ``standalone_command``). So the supervisor watches: a
dead component ends the whole part, which is then restarted on the same database.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from local import hub
from local.stack import marks
from local.stack.folder import HOST, Folder

USER: Final = "admin"
COMPONENTS: Final = ("scheduler", "dag-processor", "api-server", "triggerer")
LOCAL_SETTINGS: Final = Path(__file__).parent / "airflow_config" / "airflow_local_settings.py"
PORTS: Final = ("airflow", "airflow_worker_logs", "airflow_trigger_logs")
ENVIRONMENTS: Final = ("airflow", "composer")
"""Those of `local.environments` that can run it, the default first; the second has the versions of Cloud Composer's image."""


_CONNECTION: Final = {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": "local"}}


@dataclass(frozen=True)
class Choice:
    """What a stack's Airflow is.

    dags: its DAG folder. environment: one of `ENVIRONMENTS`. by_the_clock: whether schedules start runs.
    """

    dags: Path
    environment: str = ENVIRONMENTS[0]
    by_the_clock: bool = False


def url(ports: Mapping[str, int]) -> str:
    return f"http://{HOST}:{ports['airflow']}"


def settings(folder: Folder, ports: Mapping[str, int], choice: Choice, package: Path) -> dict[str, str]:
    """Airflow's environment, also for its command line (``airflow backfill create``). The times are seconds.

    package: where nightshift is installed. There is no plugins folder, as on Cloud Composer: see `local.package`.
    """
    secrets = folder.secrets()
    sections: dict[str, dict[str, Any]] = {
        "core": {
            "dags_folder": choice.dags,
            "load_examples": False,
            "task_success_overtime": 150,  # more than OpenLineage takes, see below
            "executor": "LocalExecutor",
            # Each is a process of 60 MB, running from the start (32 by default), and there are only two cores.
            "parallelism": 4,
            "dags_are_paused_at_creation": False,
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": folder.passwords,
            "execution_api_server_url": f"{url(ports)}/execution/",
            "fernet_key": secrets["fernet_key"],
            # The default asks the resolver for a full name, which takes seconds if nothing answers.
            "hostname_callable": "socket.gethostname",
        },
        # Connections set WAL by themselves; the timeout is for two writers that collide (pysqlite's own is 5 s).
        # See also `LOCAL_SETTINGS`.
        "database": {"sql_alchemy_conn": f"sqlite:///{folder.airflow_home}/airflow.db?timeout=60"},
        "api": {
            "host": HOST,
            "port": ports["airflow"],
            "base_url": url(ports),
            "workers": 1,
            "secret_key": secrets["session_secret"],
        },
        "api_auth": {"jwt_secret": secrets["jwt_secret"]},
        "logging": {
            "worker_log_server_port": ports["airflow_worker_logs"],
            "trigger_log_server_port": ports["airflow_trigger_logs"],
        },
        **_scheduling(choice.by_the_clock),
        "openlineage": {
            "transport": json.dumps({"type": "file", "log_file_path": str(folder.lineage), "append": True}),
            "namespace": "nightshift-local",
            # Of the process that writes an event; its default of 10 s is short for a busy machine.
            "execution_timeout": 120,
        },
    }
    return {
        **_variables(sections),
        # The models are in the local hub's cache, and the task plan asks no other hub for commits, configs and tokenizers.
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(hub.hub_dir()),
        "PYTHONPATH": str(package),
        "AIRFLOW_HOME": str(folder.airflow_home),
        "NIGHTSHIFT_NOTIFIERS": str(choice.dags / "notifiers.yaml"),
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(_CONNECTION),
        **_traces(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")),
    }


def _variables(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Airflow's names for what its configuration file would have."""
    return {
        f"AIRFLOW__{section.upper()}__{name.upper()}": str(value)
        for section, values in sections.items()
        for name, value in values.items()
    }


def _traces(collector: str) -> dict[str, str]:
    """Sends a trace of every request, from Airflow's task to the engine, to that collector; {} if there is none.

    collector: takes OTLP over HTTP; a URL without a path, by OpenTelemetry's own variable.
    """
    if not collector:
        return {}
    return {
        "AIRFLOW__TRACES__OTEL_ON": "True",
        "OTEL_SERVICE_NAME": "airflow",
        "OTEL_TRACES_EXPORTER": "otlp_proto_http",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "NIGHTSHIFT_TRACES": collector.rstrip("/"),
        "NIGHTSHIFT_TRACED_REQUESTS": "1",
    }


def _scheduling(by_the_clock: bool) -> dict[str, dict[str, Any]]:
    """Settings that decide how soon something happens, by section."""
    return {
        "scheduler": {
            # The wait between two tasks of a chain: with the default of 1 s a chain of six takes 7.5 s, with this 2 to 3 s.
            "scheduler_idle_sleep_time": 0.25,
            "catchup_by_default": False,
            # A job's cron is for deployments: here a night usually runs on request, not when the stack comes up.
            "use_job_schedule": by_the_clock,
            # What a killed scheduler left is taken up after 20 s instead of 5 min, without costing a task an attempt.
            "scheduler_health_check_threshold": 20,
            "orphaned_tasks_check_interval": 10,
            "task_instance_heartbeat_timeout": 60,
        },
        # The next triggerer takes up a killed one's triggers after this time.
        "triggerer": {"job_heartbeat_sec": 2, "triggerer_health_check_threshold": 15},
        "dag_processor": {
            # A new job file changes no .py file: the next parse of the unchanged one finds it. Each parse is a process, which
            # computes for most of a second: every 5 s, they took a fifth of a core from the night.
            "min_file_process_interval": 20,
            "refresh_interval": 5,
            "bundle_refresh_check_interval": 2,
            "parsing_processes": 1,
            # The notification of a failed DAG run: the first one loads Airflow's API, for 60 s on a busy machine. After 50 s,
            # the default, Airflow kills it, and never tries again.
            "dag_file_processor_timeout": 300,
        },
    }


def write_config(folder: Folder) -> None:
    """Puts the settings that are code where Airflow looks for them."""
    config = folder.airflow_home / "config"
    config.mkdir(exist_ok=True)
    shutil.copy(LOCAL_SETTINGS, config)


def write_passwords(folder: Folder) -> None:
    folder.passwords.touch(mode=0o600)
    folder.passwords.write_text(json.dumps({USER: folder.secrets()["password"]}) + "\n")


def unhealthy(health: Any, since: float) -> str | None:
    """What is wrong with the reply of ``/api/v2/monitor/health``; None when all components beat after `since` (epoch seconds).

    The heartbeat counts, not only the status: right after a restart the status still describes the killed component.
    """
    for component in ("metadatabase", "scheduler", "triggerer", "dag_processor"):
        report = health.get(component) or {}
        if report.get("status") != "healthy":
            return f"{component} is {report.get('status')}"
        beat = report.get(f"latest_{component}_heartbeat")
        if component != "metadatabase" and (not beat or datetime.fromisoformat(beat).timestamp() < since):
            return f"{component} has not reported yet"
    return None


def dead_component(standalone: int) -> str | None:
    """Names a component of ``airflow standalone`` that has died; None while all live."""
    dead = [pid for pid, state in marks.children(standalone).items() if state == "Z"]
    return f"component with pid {dead[0]} is dead" if dead else None


def component_pids(standalone: int, name: str) -> list[int]:
    """The process of one of `COMPONENTS`."""
    found = []
    for pid, state in marks.children(standalone).items():
        with contextlib.suppress(OSError):  # It may end meanwhile.
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if state != "Z" and name in command.replace("_", "-"):
                found.append(pid)
    return found
