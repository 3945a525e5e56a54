"""The driver's scheduler: what is sent next and what an outcome means."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from nightshift.chunks import Result
from nightshift.driver.scheduler import TRIES, Group, OpenChunk, Scheduler, judge_reply
from nightshift.tasks.base import Answer, BadInput, Reason

pytestmark = pytest.mark.unit


class Kind:
    """A task kind whose payload is the row's text; "bad" cannot be rendered."""

    endpoint = "/x"
    server_args: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("text",)
    rows_per_request = 4
    prediction_type = None

    def render(self, row: Mapping[str, Any]) -> Any:
        if row["text"] == "bad":
            raise BadInput("bad text")
        return row["text"]

    def body(self, payloads: Sequence[Any]) -> dict[str, Any]:
        return {"input": list(payloads)}

    def answers(self, reply: Mapping[str, Any], count: int) -> list[Answer]:
        raise NotImplementedError("the tests answer by themselves")


def opened(texts: Sequence[str], *, first: int = 0, known: Sequence[Result] = ()) -> Scheduler:
    scheduler = Scheduler(Kind())
    scheduler.open_chunk(0, first, [{"text": text} for text in texts], known)
    return scheduler


def take(scheduler: Scheduler) -> Group:
    group = scheduler.next_group()
    assert group is not None
    return group


def answer(scheduler: Scheduler, group: Group) -> None:
    scheduler.answered(group, [Answer(payload) for payload in group.payloads], 1)


def finish(scheduler: Scheduler, poison: str = "") -> OpenChunk:
    """Answers all that is sent, refusing each request that holds `poison`, until the chunk is finished."""
    while (group := scheduler.next_group()) is not None:
        if poison and poison in group.payloads:
            scheduler.refused(group, Reason.REJECTED, "poison")
        else:
            answer(scheduler, group)
    chunk = scheduler.pop_finished()
    assert chunk is not None
    return chunk


def test_rows_travel_in_order_and_in_groups() -> None:
    scheduler = opened([str(n) for n in range(10)])

    assert [take(scheduler).payloads for _ in range(3)] == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9"]]
    assert scheduler.next_group() is None


def test_a_chunk_is_finished_with_its_last_row_in_any_order() -> None:
    scheduler = opened([str(n) for n in range(6)], first=100)
    first, second = take(scheduler), take(scheduler)

    answer(scheduler, second)
    assert scheduler.pop_finished() is None
    answer(scheduler, first)

    chunk = scheduler.pop_finished()
    assert chunk is not None
    assert [result.ordinal for result in chunk.in_order()] == list(range(100, 106))
    assert chunk.prompt_tokens == 2


@pytest.mark.parametrize("position", range(8))
def test_a_refused_group_costs_no_good_row(position: int) -> None:
    texts = [str(n) for n in range(8)]
    texts[position] = "poison"

    results = finish(opened(texts), poison="poison").in_order()

    assert [result.reason for result in results].count("rejected") == 1
    assert results[position].reason == "rejected"
    assert all(result.prediction == text for result, text in zip(results, texts, strict=True) if text != "poison")


def test_a_row_that_cannot_be_rendered_is_never_sent() -> None:
    chunk = finish(opened(["a", "bad", "c"]))

    assert [result.reason for result in chunk.in_order()] == [None, "bad_input", None]


def test_a_chunk_of_nothing_but_bad_rows_is_finished_at_once() -> None:
    scheduler = opened(["bad", "bad"])

    assert scheduler.next_group() is None
    assert scheduler.pop_finished() is not None


def test_failures_are_repeated_and_then_the_row_is_singled_out() -> None:
    scheduler = opened(["a", "killer", "c", "d"])
    sent = 0

    while (group := scheduler.next_group()) is not None:
        sent += 1
        if "killer" in group.payloads:
            scheduler.failed(group, Reason.ENGINE_ERROR, "boom")
        else:
            answer(scheduler, group)

    chunk = scheduler.pop_finished()
    assert chunk is not None
    assert [result.reason for result in chunk.in_order()] == [None, "engine_error", None, None]
    assert sent == TRIES + 2 * 2 + 2, "four rows four times, two rows twice, one twice, and the innocent groups once each"


def test_what_comes_back_unjudged_is_sent_again_and_never_counts_against_a_row() -> None:
    scheduler = opened(["a", "b"])

    for _ in range(3 * TRIES):
        scheduler.returned(take(scheduler))
    chunk = finish(scheduler)

    assert [result.reason for result in chunk.in_order()] == [None, None]
    assert chunk.in_order()[0].attempts == 3 * TRIES + 1


def test_saved_rows_are_not_sent_again_and_the_first_of_several_counts() -> None:
    known = [Result(1, "saved", None, None, 1), Result(1, "later", None, None, 1), Result(99, "foreign", None, None, 1)]
    scheduler = opened(["a", "b", "c"], known=known)

    group = take(scheduler)

    assert group.payloads == ["a", "c"]
    answer(scheduler, group)
    chunk = scheduler.pop_finished()
    assert chunk is not None
    assert [result.prediction for result in chunk.in_order()] == ["a", "saved", "c"]


def test_a_drain_finds_the_chunks_with_some_rows_done() -> None:
    scheduler = opened([str(n) for n in range(8)])
    scheduler.open_chunk(1, 8, [{"text": "x"}], [])
    answer(scheduler, take(scheduler))

    assert [(chunk.number, len(chunk.results)) for chunk in scheduler.unfinished()] == [(0, 4)]


def test_the_counts_are_shown() -> None:
    scheduler = opened([str(n) for n in range(8)])
    take(scheduler)

    assert repr(scheduler) == "Scheduler(open_chunks=1, ready_groups=1, rows_in_flight=4, finished_chunks=0)"


def test_a_message_that_no_file_can_hold_costs_no_other_row() -> None:
    scheduler = opened(["a"])
    group = scheduler.next_group()
    assert group is not None
    scheduler.refused(group, Reason.REJECTED, "half a pair: \ud83d")
    chunk = scheduler.pop_finished()
    assert chunk is not None

    assert chunk.in_order()[0].message == "half a pair: ?"


@pytest.mark.parametrize("usage", [None, [], {}, {"prompt_tokens": None}, {"prompt_tokens": "many"}])
def test_a_reply_without_a_count_of_tokens_counts_none(usage: Any) -> None:
    class Answering(Kind):
        def answers(self, reply: Mapping[str, Any], count: int) -> list[Answer]:
            return [Answer(n) for n in range(count)]

    group = opened(["a", "b"]).next_group()
    assert group is not None

    assert judge_reply(Answering(), group, {"usage": usage}) == ([Answer(0), Answer(1)], 0)
