"""Every JobSet that a namespace has ever had, by a watch that hears of each change."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from nightshift.jobset.observation import condition
from tests.cluster.kube import Namespace
from tests.cluster.watch import Watch


class Census(Watch):
    """JobSets are told apart by the value of a label."""

    def __init__(self, namespace: Namespace, label: str) -> None:
        super().__init__(namespace, "jobsets")
        self._label = label

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
        for kind, jobset in self.changes():
            there[jobset["metadata"]["uid"]] = jobset
            if kind == "DELETED":
                del there[jobset["metadata"]["uid"]]
        found = defaultdict(list)
        for jobset in there.values():
            found[jobset["metadata"]["labels"][self._label]].append(jobset)
        return found

    def _of(self, value: str) -> list[tuple[str, dict[str, Any]]]:
        return [change for change in self.changes() if change[1]["metadata"]["labels"].get(self._label) == value]
