"""Where the pods of a run are, who has to act, and when somebody is told that none begins to work."""

from __future__ import annotations

import time

import pytest
from obstore.store import MemoryStore

from nightshift.jobset.fleet import shown
from nightshift.run.observed.pods_now import Acts, JobSetNow, LastWords, PodEnding, PodNow, Stage
from nightshift.status.fleets import stages, trouble
from nightshift.status.overview import RunLook
from nightshift.status.summary import Summarizer
from tests.chat_run import ChatRun, a_chat_run

pytestmark = pytest.mark.unit

AT = "2026-11-21T02:00:00+00:00"
NOW = 1795227600.0  # 20 min after AT
START_S = 1800.0
WORDS = LastWords("server", 1, "Error", 3, AT, "ValueError: no such model", ("Traceback", "ValueError: no such model"))


def pod(name: str, stage: Stage, acts: Acts = Acts.NOBODY, **more: object) -> PodNow:
    return PodNow(name, 0, stage, AT, acts, **more)  # type: ignore[arg-type]


def no() -> bool:
    return False


def a_fleet(*pods: PodNow, wanted: int = 1, **more: object) -> JobSetNow:
    return JobSetNow("night", AT, wanted, pods=pods, **more)  # type: ignore[arg-type]


class TestStages:
    def test_pods_that_wait_for_the_same_are_one_line_in_the_order_of_their_path(self) -> None:
        fleet = a_fleet(
            pod("a", Stage.WORKING),
            pod("b", Stage.NODE, Acts.CLUSTER, why="0/3 nodes"),
            pod("c", Stage.NODE, Acts.CLUSTER, why="0/3 nodes"),
            pod("d", Stage.NODE),
        )

        assert [(each.stage, each.pods, each.acts, each.waits_for) for each in stages([fleet])] == [
            (Stage.NODE, 2, Acts.CLUSTER, "a machine (0/3 nodes)"),
            (Stage.NODE, 1, Acts.NOBODY, "a machine"),
            (Stage.WORKING, 1, Acts.NOBODY, ""),
        ]

    def test_those_that_wait_for_quota_are_counted_before_they_exist(self) -> None:
        fleet = a_fleet(pod("a", Stage.ENDED), wanted=8, stage=Stage.QUEUE, since=AT, acts=Acts.CLUSTER, why="no quota")

        assert [(each.stage, each.pods, each.since) for each in stages([fleet])] == [
            (Stage.QUEUE, 8, AT),
            (Stage.ENDED, 1, AT),
        ]


class TestTrouble:
    def test_an_engine_that_exits_again_and_again(self) -> None:
        fleet = a_fleet(pod("a", Stage.WEIGHTS, words=WORDS, restarts=3), pod("b", Stage.WEIGHTS))

        assert trouble([fleet], NOW, START_S, no) == (
            "engine",
            "No engine starts: server (restarted 3 times, last error: ValueError: no such model).",
        )

    @pytest.mark.parametrize(
        "fleet",
        [
            a_fleet(pod("a", Stage.WEIGHTS, words=WORDS, restarts=3), pod("b", Stage.WORKING)),
            a_fleet(pod("a", Stage.WEIGHTS, words=WORDS, restarts=1)),
            a_fleet(pod("a", Stage.ENDED, words=WORDS, restarts=3, ending=PodEnding.FAILED)),
            a_fleet(pod("a", Stage.NODE)),
        ],
    )
    def test_what_works_or_may_yet_is_none(self, fleet: JobSetNow) -> None:
        assert trouble([fleet], NOW, START_S, no) is None

    def test_waiting_for_the_cluster_for_long(self) -> None:
        fleet = a_fleet(pod("a", Stage.NODE, Acts.CLUSTER, why="no nodes"))

        assert trouble([fleet], NOW - 600, START_S, no) is None
        assert trouble([fleet], NOW, START_S, no) == (
            "waiting",
            "1 pod waiting for a machine (no nodes) for 20 min: ask who runs the cluster.",
        )

    @pytest.mark.parametrize("stage", [Stage.WEIGHTS, Stage.WARM_UP, Stage.WORKING])
    def test_an_engine_that_runs_and_answers_nothing(self, stage: Stage) -> None:
        fleet = a_fleet(pod("a", stage), pod("b", Stage.NODE))

        assert trouble([fleet], NOW, 1200, no) is None
        assert trouble([fleet], NOW, 600, lambda: True) is None
        kind, words = trouble([fleet], NOW, 600, no) or ("", "")
        assert kind == "engine"
        assert words.startswith("No row is answered, and an engine has run for 20 min; a start takes 10 min at most.")


class TestWhereItIsShown:
    @pytest.fixture
    def run(self) -> ChatRun:
        run = a_chat_run(MemoryStore())
        shown.save_now(
            run.store, run.run, a_fleet(pod("pod-0-pod", Stage.WORKING), pod("x", Stage.WEIGHTS, words=WORDS, restarts=3))
        )
        return run

    def test_a_run_whose_engine_does_not_start_needs_attention(self, run: ChatRun) -> None:
        fleet = a_fleet(pod("x", Stage.WEIGHTS, Acts.AUTHOR, words=WORDS, restarts=3))
        shown.save_now(run.store, run.run, fleet)

        found = Summarizer(run.store, run.run).summary(lambda _: None, time.time())

        assert found is not None
        assert [each.kind for each in found.attention] == ["engine"]

    def test_a_run_whose_engine_hangs_needs_attention_until_a_worker_has_an_answer(self, run: ChatRun) -> None:
        shown.save_now(run.store, run.run, a_fleet(pod("x", Stage.WORKING)))

        def kinds() -> list[str]:
            found = Summarizer(run.store, run.run).summary(lambda _: None, time.time())
            assert found is not None
            return [each.kind for each in found.attention]

        run.beat("pod-0", rows_answered=0)
        assert kinds() == ["engine"]
        run.beat("pod-0", 1, rows_answered=1)
        assert kinds() == []

    def test_the_first_screen_has_stages_and_the_last_words(self, run: ChatRun) -> None:
        """A pod whose driver has sent nothing yet is not working."""
        run.beat("pod-0", start_up_s={"weights": 3.0})

        found = RunLook(run.store, run.run, "memory:///x").look()

        assert [(each.stage, each.pods) for each in found.stages] == [(Stage.WEIGHTS, 1), (Stage.WARM_UP, 1)]
        assert found.last_words == WORDS
        shown = found.to_json()
        assert shown["last_words"]["said"] == "ValueError: no such model"
        assert shown["stages"][0]["waits_for"].startswith("server (restarted 3 times")
