"""Every JobSet that a namespace has ever had, by a watch that hears of each change."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import defaultdict
from types import TracebackType
from typing import Any, Self

from local.cluster import build
from nightshift.jobset.observation import condition
from tests.cluster.kube import Namespace


class Census:
    """A context manager. JobSets are told apart by the value of a label."""

    def __init__(self, namespace: Namespace, label: str) -> None:
        self._label = label
        self._changes: list[tuple[str, dict[str, Any]]] = []
        config = str(namespace.cluster.kubeconfig)
        command = [str(build.Programs()["kubectl"]), "--kubeconfig", config, "--namespace", namespace.name]
        command += ["get", "jobsets", "--watch", "--output-watch-events", "--output", "json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def uids(self, value: str) -> list[str]:
        """Of those that there ever were, oldest first."""
        return list(dict.fromkeys(each["metadata"]["uid"] for _, each in self._of(value)))

    def most_at_once(self, value: str) -> int:
        """How many there were at once that had not ended: one that is being deleted counts until it is gone."""
        living: dict[str, bool] = {}
        most = 0
        for kind, jobset in self._of(value):
            ended = condition(jobset, "Completed") or condition(jobset, "Failed")
            living[jobset["metadata"]["uid"]] = kind != "DELETED" and not ended
            most = max(most, sum(living.values()))
        return most

    def living(self) -> dict[str, list[dict[str, Any]]]:
        """Those that are there now, by label."""
        there: dict[str, dict[str, Any]] = {}
        for kind, jobset in list(self._changes):
            there[jobset["metadata"]["uid"]] = jobset
            if kind == "DELETED":
                del there[jobset["metadata"]["uid"]]
        found = defaultdict(list)
        for jobset in there.values():
            found[jobset["metadata"]["labels"][self._label]].append(jobset)
        return found

    def _of(self, value: str) -> list[tuple[str, dict[str, Any]]]:
        return [change for change in list(self._changes) if change[1]["metadata"]["labels"].get(self._label) == value]

    def _read(self) -> None:
        assert self._process.stdout is not None
        decoder, text = json.JSONDecoder(), ""
        for line in self._process.stdout:
            text = (text + line).lstrip()
            try:
                event, end = decoder.raw_decode(text)
            except json.JSONDecodeError:
                continue  # The rest of the object comes with the next lines.
            text = text[end:]
            self._changes.append((event["type"], event["object"]))
