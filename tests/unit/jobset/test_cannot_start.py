"""When an engine that cannot start ends a night, and when it does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from nightshift.jobset.verdict.cannot_start import IMAGE_S, PASSING_S, TRIES, CannotStart, Cause, cannot_start, cause_of
from nightshift.jobset.verdict.last_words import Words
from nightshift.run.observed.pods_now import Acts, LastWords, PodEnding, PodNow, Stage
from tests.unit.jobset import test_last_words as said

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 21, tzinfo=UTC).timestamp()
BEGAN = "2026-11-20T23:59:00+00:00"
WORDS = LastWords("server", 1, "Error", TRIES - 1, BEGAN, "OSError: x is not a valid model identifier", exits=TRIES)
POD = PodNow("a-0", 0, Stage.WEIGHTS, BEGAN, Acts.AUTHOR, restarts=TRIES - 1, words=WORDS)
ONCE = replace(POD, name="a-1", words=replace(WORDS, exits=1))
LOADS = replace(POD, name="a-2", words=None, restarts=0)
STUCK = PodNow("a-0", 0, Stage.IMAGE, BEGAN, Acts.CLUSTER, why="server: ImagePullBackOff", stuck=True)


def spoken(log: str, **more: object) -> LastWords:
    words = Words(log.splitlines())
    return replace(WORDS, cause=words.cause, lines=words.lines, may_pass=words.may_pass, **more)  # type: ignore[arg-type]


def test_an_engine_that_has_exited_often_enough_on_the_only_pod_is_over() -> None:
    found = cannot_start([POD], NOW)

    assert found is not None
    assert (found.cause, found.explanation) == (
        Cause.MODEL,
        "the engine cannot start: OSError: x is not a valid model identifier (exit code 1, 3 times, on the only pod)",
    )
    assert CannotStart.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ([], "none exists"),
        ([ONCE], "it has not tried often enough"),
        ([POD, LOADS], "one is still trying for the first time"),
        ([POD, replace(LOADS, stage=Stage.WORKING)], "one works"),
        ([POD, replace(LOADS, stage=Stage.ENDED, ending=PodEnding.DONE)], "one has worked"),
        ([POD, replace(LOADS, stage=Stage.ENDED, ending=PodEnding.FAILED)], "one has worked and failed since"),
        ([replace(POD, words=replace(WORDS, may_pass=True))], "a server that does not answer may answer again"),
        ([replace(POD, words=replace(WORDS, exit_code=137))], "its probe ended it: a slow download"),
        ([replace(POD, words=replace(WORDS, exit_code=143))], "the same, of one that ends when it is asked to"),
    ],
)
def test_a_night_goes_on_as_long_as_waiting_may_help(pods: list[PodNow], why: str) -> None:
    assert cannot_start(pods, NOW) is None, why


def test_one_that_has_tried_often_speaks_for_those_that_have_tried() -> None:
    taken = replace(LOADS, stage=Stage.ENDED, ending=PodEnding.TAKEN)
    found = cannot_start([POD, ONCE, replace(LOADS, stage=Stage.NODE), taken], NOW)

    assert found is not None
    assert (found.pods, found.tried) == (2, 2)


def test_what_may_pass_is_over_after_a_quarter_of_an_hour() -> None:
    for words in (replace(WORDS, may_pass=True), replace(WORDS, exit_code=137), replace(WORDS, exit_code=143)):
        assert cannot_start([replace(POD, words=words)], NOW + PASSING_S) is not None


def test_too_little_memory_does_not_pass() -> None:
    found = cannot_start([replace(POD, words=replace(WORDS, exit_code=137, reason="OOMKilled", cause=""))], NOW)

    assert found is not None
    assert found.cause is Cause.MEMORY
    assert found.explanation == "the engine cannot start: exit code 137 (SIGKILL, out of memory), 3 times, on the only pod"


def test_an_image_that_cannot_be_had_is_over_after_minutes_on_every_pod_with_a_machine() -> None:
    fresh = replace(STUCK, name="a-1", since=datetime.fromtimestamp(NOW + IMAGE_S, UTC).isoformat())

    assert cannot_start([STUCK], NOW) is None
    assert cannot_start([STUCK, fresh], NOW + IMAGE_S) is None
    assert cannot_start([STUCK, LOADS], NOW + IMAGE_S) is None
    assert cannot_start([STUCK, replace(LOADS, stage=Stage.IMAGE)], NOW + IMAGE_S) is None
    found = cannot_start([STUCK, replace(LOADS, stage=Stage.NODE)], NOW + IMAGE_S)
    assert found is not None
    assert found.explanation == "a container cannot be started on the only pod: server: ImagePullBackOff"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (spoken(said.OFFLINE), Cause.MODEL),
        (spoken(said.FLAG), Cause.FLAG),
        (spoken(said.ENGINE), Cause.MEMORY),
        (spoken(said.CACHE), Cause.MEMORY),
        (spoken(said.PYDANTIC), Cause.WEIGHTS),
        (spoken(said.UNREACHABLE), Cause.UNREACHABLE),
        (spoken("", exit_code=127), Cause.PROGRAM),
        (spoken("", exit_code=128, reason="StartError"), Cause.PROGRAM),
        (spoken("INFO Starting to load model", exit_code=137), Cause.KILLED),
        (spoken("RuntimeError: the moon is full"), Cause.OTHER),
    ],
)
def test_what_an_engine_says_is_what_to_do(words: LastWords, cause: Cause) -> None:
    assert cause_of(words) is cause
