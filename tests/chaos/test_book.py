"""The soak's checkers bite: each is shown a record in which one thing went wrong."""

import pytest

from tests.builders import a_plan
from tests.chaos.book import HOUSEKEEPING_S, SLACK_S, Book, Commit, Life, Seen
from tests.chaos.faults import DECK, deal

pytestmark = pytest.mark.unit


def a_book(*lives: Life) -> Book:
    """Two chunks of four rows; chunk 0 was committed at 100."""
    book = Book(a_plan(8), {}, lives={life.name: life for life in lives})
    book.commits[0] = Commit(100.0, "early", "digest")
    return book


def test_rows_sent_once_and_committed_are_well() -> None:
    book = a_book(Life("early", 0.0), Life("late", 101.0))
    book.sent = [Seen(50.0, "early", (0, 1, 2, 3)), Seen(102.0, "late", (4, 5, 6, 7))]

    assert book.violations() == []
    assert (book.rows_sent_again(), book.rows_sent_after_commit()) == (0, 0)


def test_a_life_that_began_after_a_commit_sends_none_of_its_rows() -> None:
    book = a_book(Life("late", 101.0))
    book.sent = [Seen(102.0, "late", (3, 4))]

    assert book.violations() == ["late, which began after the commit, sent row 3 of chunk 0, committed 2.0 s before"]


def test_a_life_that_was_at_it_stops_after_a_while() -> None:
    book = a_book(Life("early", 0.0))
    book.sent = [Seen(100.0 + HOUSEKEEPING_S, "early", (0,)), Seen(101.0 + HOUSEKEEPING_S + SLACK_S, "early", (1,))]

    assert book.violations() == ["early sent row 1 of chunk 0, committed 51.0 s before"]
    assert book.rows_sent_after_commit() == 2


def test_time_in_which_it_could_not_know_does_not_count() -> None:
    book = a_book(Life("early", 0.0, frozen=[(90.0, 130.0)]))
    book.outages = [(130.0, 140.0)]
    book.sent = [Seen(189.0, "early", (0,))]

    assert book.violations() == []


def test_what_a_drain_saved_is_not_computed_by_a_later_life() -> None:
    book = a_book(Life("early", 0.0), Life("late", 60.0))
    book.saved = [Seen(50.0, "early", (4, 5))]
    book.sent = [Seen(55.0, "early", (4,)), Seen(61.0, "late", (5, 6))]

    assert book.violations() == ["late sent row 5, which early had saved before it began"]


@pytest.mark.parametrize(
    ("outages", "forgotten"), [([], [5]), ([(45.0, 52.0)], [])], ids=["the store is well", "the store is out of order"]
)
def test_a_drain_keeps_what_had_arrived(outages: list[tuple[float, float]], forgotten: list[int]) -> None:
    book = a_book(Life("early", 0.0, asked=50.0, ended=55.0, code=75))
    book.outages = outages
    book.delivered = [Seen(49.0, "early", (4, 5)), Seen(51.0, "early", (6,))]
    book.saved = [Seen(52.0, "early", (4,))]

    assert book.violations() == [
        f"early had the answer for row {row}, drained, and neither committed nor saved it" for row in forgotten
    ]


def test_a_seed_deals_the_same_faults_again_and_each_kind_in_every_deck() -> None:
    size = sum(DECK.values())

    assert deal(7, 200) == deal(7, 200) != deal(8, 200)
    assert deal(7, 30)[:10] == deal(7, 10)
    assert set(deal(7, size)) == set(DECK)
