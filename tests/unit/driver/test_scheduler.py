"""The driver's scheduler: what is sent next and what an outcome means."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.scheduler import ALONE_DEATHS, DROPS, REFUSALS, REFUSALS_PROVEN, SUSPECT_DEATHS, TRIES, Group, Scheduler
from nightshift.run.chunks import Part, Result, Saved
from nightshift.tasks.base import Answer, Answers, BadInput, Discarded, Reason, RowName, Spoiled

pytestmark = pytest.mark.unit

Known = dict[str, Saved]


class Kind:
    """A task kind whose payload is the row's text; "bad" cannot be rendered."""

    server_args: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("text",)
    rows_per_request = 4
    prediction_type = None

    def render(self, row: Mapping[str, Any], name: RowName) -> Any:
        if row["text"] == "bad":
            raise BadInput("bad text")
        if row["text"] == "unforeseen":
            raise KeyError("what")
        return row["text"]

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        raise AssertionError("the tests send nothing")

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        raise AssertionError("the tests answer by themselves")


def open_rows(scheduler: Scheduler, number: int, ordinals: range, texts: Iterable[str], known: Known | None = None) -> None:
    scheduler.open_chunk(number, ordinals, iter([{"text": text} for text in texts]), known or {})


def saved_by(attempt: str, *results: Result) -> Known:
    return {attempt: Saved(results, Part(attempt, "node", "0", len(results)))}


def opened(texts: Sequence[str], *, first: int = 0, known: Known | None = None) -> Scheduler:
    scheduler = Scheduler(Kind())
    open_rows(scheduler, 0, range(first, first + len(texts)), texts, known)
    return scheduler


def take(scheduler: Scheduler) -> Group:
    group = scheduler.next_group()
    assert group is not None
    return group


def answer(scheduler: Scheduler, group: Group) -> None:
    scheduler.answered(group, Answers([Answer(payload) for payload in group.payloads], 1, 2))


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
    assert (chunk.prompt_tokens, chunk.output_tokens) == (2, 4)


def test_an_answer_that_is_cut_is_counted_and_one_that_the_job_refuses_is_a_dead_letter_at_once() -> None:
    scheduler = opened(["a", "b", "c", "d"])
    refused = Discarded(Reason.TRUNCATED, "too long")

    scheduler.answered(take(scheduler), Answers([Answer("a", truncated=True), refused, Answer("c"), refused], 4, 9))

    assert scheduler.next_group() is None, "it is not sent again"
    chunk = scheduler.pop_finished()
    assert chunk is not None
    assert [result.reason for result in chunk.in_order()] == [None, "truncated", None, "truncated"]
    assert chunk.in_order()[1].message == "too long"
    assert (chunk.truncated, chunk.prompt_tokens, chunk.output_tokens) == (1, 4, 9)


def test_a_spoiled_row_goes_again_alone_and_the_others_are_answered() -> None:
    scheduler = opened(["a", "b", "c", "d"])

    scheduler.answered(take(scheduler), Answers([Answer("A"), Spoiled("not a number"), Answer("C"), Answer("D")]))

    for tries in range(2, TRIES + 1):
        again = take(scheduler)
        assert [(row.ordinal, row.tries, row.faults, row.invalid) for row in again.rows] == [(1, tries, tries - 1, tries - 1)]
        scheduler.failed(again, Reason.INVALID_OUTPUT, "not a number")
    chunk = scheduler.pop_finished()
    assert chunk is not None
    assert [result.reason for result in chunk.in_order()] == [None, "invalid_output", None, None]
    assert (chunk.in_order()[1].message, chunk.in_order()[1].attempts) == ("not a number", TRIES)


@pytest.mark.parametrize("position", range(8))
def test_a_refused_group_costs_no_good_row(position: int) -> None:
    texts = [str(n) for n in range(8)]
    texts[position] = "poison"

    results = finish(opened(texts), poison="poison").in_order()

    assert [result.reason for result in results].count("rejected") == 1
    assert results[position].reason == "rejected"
    assert all(result.prediction == text for result, text in zip(results, texts, strict=True) if text != "poison")


def test_a_finished_chunk_is_let_go_though_nobody_has_asked_whether_it_has_more_rows() -> None:
    scheduler = opened([str(n) for n in range(4)])
    answer(scheduler, take(scheduler))

    assert scheduler.pop_finished() is not None
    assert scheduler.hungry


def test_a_row_that_cannot_be_rendered_is_never_sent() -> None:
    chunk = finish(opened(["a", "bad", "c"]))

    assert [result.reason for result in chunk.in_order()] == [None, "bad_input", None]


def test_what_a_kind_did_not_foresee_costs_no_other_row() -> None:
    chunk = finish(opened(["a", "unforeseen", "c"]))

    assert [result.reason for result in chunk.in_order()] == [None, "bad_input", None]
    assert chunk.in_order()[1].message == "the row cannot be rendered: KeyError('what')"


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
    known = saved_by("pod-a", Result(1, "saved", None, None, 1))
    known |= saved_by("pod-b", Result(1, "later", None, None, 1), Result(99, "foreign", None, None, 1))
    scheduler = opened(["a", "b", "c"], known=known)

    group = take(scheduler)

    assert group.payloads == ["a", "c"]
    answer(scheduler, group)
    chunk = scheduler.pop_finished()
    assert chunk is not None
    assert [result.prediction for result in chunk.in_order()] == ["a", "saved", "c"]
    assert (chunk.taken, chunk.computed) == ([Part("pod-a", "node", "0", 1)], 2)
    assert [result.prediction for result in chunk.own()] == ["a", "c"]


def test_a_chunk_that_was_saved_whole_is_finished_at_once() -> None:
    scheduler = opened(["a"], known=saved_by("pod", Result(0, "saved", None, None, 1)))

    assert scheduler.next_group() is None
    assert scheduler.pop_finished() is not None
    assert scheduler.idle


def test_a_drain_finds_the_chunks_with_some_rows_done() -> None:
    scheduler = opened([str(n) for n in range(8)])
    open_rows(scheduler, 1, range(8, 9), ["x"])
    open_rows(scheduler, 2, range(9, 11), ["y", "z"], saved_by("pod", Result(9, "saved", None, None, 1)))
    answer(scheduler, take(scheduler))

    assert [(chunk.number, len(chunk.results)) for chunk in scheduler.unfinished()] == [(0, 4)]


def test_the_counts_are_shown() -> None:
    scheduler = opened([str(n) for n in range(8)])
    take(scheduler)

    assert repr(scheduler) == "Scheduler(open_chunks=1, groups_waiting=0, suspects=0, rows_in_flight=4, finished_chunks=0)"


def test_a_message_that_no_file_can_hold_costs_no_other_row() -> None:
    scheduler = opened(["a"])
    group = scheduler.next_group()
    assert group is not None
    scheduler.refused(group, Reason.REJECTED, "half a pair: \ud83d")
    chunk = scheduler.pop_finished()
    assert chunk is not None

    assert chunk.in_order()[0].message == "half a pair: ?"


def die(scheduler: Scheduler) -> int:
    """The engine dies with all that was sent; how many requests it had."""
    groups = []
    while (group := scheduler.next_group()) is not None:
        groups.append(group)
    scheduler.engine_died("gone", None, 0)
    for group in groups:
        scheduler.returned(group)
    return len(groups)


def test_a_row_that_kills_the_engine_is_isolated_and_its_neighbours_are_answered() -> None:
    scheduler = opened([str(n) for n in range(7)] + ["killer"])
    deaths = 0

    while (group := scheduler.next_group()) is not None:
        groups = [group]
        while "killer" not in groups[-1].payloads and (more := scheduler.next_group()) is not None:
            groups.append(more)
        if "killer" in groups[-1].payloads:
            deaths += 1
            scheduler.engine_died("the engine is gone", None, 0)
            for group in groups:
                scheduler.returned(group)
        else:
            for group in groups:
                answer(scheduler, group)

    chunk = scheduler.pop_finished()
    assert chunk is not None
    assert [result.reason for result in chunk.in_order()] == [None] * 7 + ["engine_killed"]
    assert deaths == SUSPECT_DEATHS + ALONE_DEATHS


def test_suspects_are_sent_one_at_a_time_with_nothing_beside_them() -> None:
    scheduler = opened([str(n) for n in range(4)])
    for _ in range(SUSPECT_DEATHS):
        assert die(scheduler) == 1
    open_rows(scheduler, 1, range(4, 8), ["x"] * 4)

    alone = []
    for _ in range(4):
        group = take(scheduler)
        assert scheduler.next_group() is None, "nothing flies beside a suspect"
        alone.append(group.payloads)
        answer(scheduler, group)

    assert alone == [["0"], ["1"], ["2"], ["3"]]
    assert take(scheduler).payloads == ["x"] * 4


def test_suspects_wait_until_all_others_have_landed() -> None:
    scheduler = opened([str(n) for n in range(12)])
    for _ in range(SUSPECT_DEATHS - 1):
        assert die(scheduler) == 3
    first, second, third = (take(scheduler) for _ in range(3))
    scheduler.engine_died("gone", None, 0)
    scheduler.returned(first)

    assert scheduler.next_group() is None
    scheduler.returned(second)
    scheduler.returned(third)
    assert take(scheduler).payloads == ["0"]


def test_what_rested_when_the_engine_died_is_no_suspect() -> None:
    scheduler = opened(["a"])
    for _ in range(SUSPECT_DEATHS + ALONE_DEATHS):
        group = take(scheduler)
        group.resting = True
        scheduler.engine_died("gone", None, 0)
        scheduler.returned(group)

    assert not take(scheduler).isolated


def test_an_engine_that_dies_says_nothing_of_the_rows_of_another() -> None:
    """Nor of where they are to go next, and what each has is counted by itself."""
    scheduler = opened([str(n) for n in range(12)])
    groups = [take(scheduler) for _ in range(3)]
    for group in groups[1:]:
        scheduler.rows_at.subtract({0: 4})
        scheduler.rows_at.update({1: 4})
        group.engine = 1
    first, second, third = groups

    for _ in range(SUSPECT_DEATHS):
        scheduler.engine_died("gone", None, 1)
    assert [{(row.deaths, row.failed_at) for row in group.rows} for group in groups] == [{(0, None)}, {(2, 1)}, {(2, 1)}]
    scheduler.returned(second)
    assert dict(scheduler.rows_at) == {0: 4, 1: 4}
    scheduler.failed(third, Reason.ENGINE_ERROR, "all is lost")
    scheduler.returned(first)
    assert dict(scheduler.rows_at) == {0: 0, 1: 0}


def test_a_row_that_was_alone_with_an_engine_is_not_given_up_for_the_death_of_another() -> None:
    scheduler = opened(["a"])
    for _ in range(SUSPECT_DEATHS):
        die(scheduler)
    group = take(scheduler)
    group.engine = 1

    assert group.isolated
    for _ in range(ALONE_DEATHS + 1):
        assert scheduler.engine_died("gone", None, 0) == 0
    assert (group.rows[0].alone, scheduler.wants(group)) == (0, True)


def test_a_row_that_failed_knows_at_which_engine() -> None:
    scheduler = opened(["a"])
    group = take(scheduler)
    group.engine = 1
    scheduler.failed(group, Reason.ENGINE_ERROR, "all is lost")

    assert take(scheduler).rows[0].failed_at == 1


def test_broken_connections_are_forgiven_many_times() -> None:
    scheduler = opened(["a"])
    drops = 0
    while (group := scheduler.next_group()) is not None:
        drops += 1
        scheduler.dropped(group, "reset")

    chunk = scheduler.pop_finished()
    assert chunk is not None
    assert (drops, chunk.in_order()[0].reason) == (TRIES * DROPS, "engine_error")


@pytest.mark.parametrize(("proven", "often"), [(False, REFUSALS), (True, REFUSALS_PROVEN)])
def test_a_row_for_which_there_is_never_room_is_given_up_in_the_end(proven: bool, often: int) -> None:
    """Soon, if a canary beside it is answered each time."""
    scheduler = opened(["a"])
    refusals = 0
    while (group := scheduler.next_group()) is not None:
        refusals += 1
        scheduler.dropped(group, "no room", 429, busy=True, proven=proven)

    chunk = scheduler.pop_finished()
    assert chunk is not None
    result = chunk.in_order()[0]
    assert (refusals, result.reason, result.text) == (TRIES * often, "engine_error", "429: no room")


def test_halves_of_a_request_count_against_no_row() -> None:
    scheduler = opened(["a", "b", "c"])

    scheduler.halved(take(scheduler))

    halves = [take(scheduler), take(scheduler)]
    assert [group.payloads for group in halves] == [["a"], ["b", "c"]]
    assert {row.faults for group in halves for row in group.rows} == {0}


def test_an_abandoned_chunk_is_forgotten_with_all_that_flies_for_it() -> None:
    scheduler = opened([str(n) for n in range(12)])
    open_rows(scheduler, 1, range(12, 13), ["x"])
    flying, back = take(scheduler), take(scheduler)
    scheduler.returned(back)

    chunk = scheduler.abandon(0)

    assert chunk is not None
    answer(scheduler, flying)
    assert take(scheduler).payloads == ["x"]
    assert scheduler.next_group() is None
    assert scheduler.statistics()["rows_in_flight"] == 1
    assert scheduler.abandon(0) is None


def test_rows_are_read_as_they_are_sent() -> None:
    read = []

    def rows() -> Iterator[dict[str, str]]:
        for n in range(100):
            read.append(n)
            yield {"text": str(n)}

    scheduler = Scheduler(Kind())
    scheduler.open_chunk(0, range(100), rows(), {})
    take(scheduler)

    assert len(read) == 4
    assert not scheduler.hungry


class Filled(Kind):
    """Ten characters fill a request."""

    chars_per_request: int | None = 10

    def chars(self, payload: str) -> int:
        return len(payload)


def test_a_request_is_full_by_the_length_of_its_texts_or_by_its_rows() -> None:
    """The row that reaches the length is the last; a single text may be longer; four short rows are the most."""
    texts = ["xxxxx", "xxxx", "x", "x" * 30, "a", "b", "c", "d", "e"]
    scheduler = Scheduler(Filled())
    open_rows(scheduler, 0, range(len(texts)), texts)

    assert [take(scheduler).payloads for _ in range(4)] == [texts[:3], texts[3:4], texts[4:8], texts[8:]]
    assert scheduler.next_group() is None
    assert scheduler.hungry


def test_where_the_job_says_the_rows_no_length_counts() -> None:
    kind = Filled()
    kind.chars_per_request = None
    scheduler = Scheduler(kind)
    open_rows(scheduler, 0, range(4), ["x" * 30] * 4)

    assert len(take(scheduler).payloads) == 4
