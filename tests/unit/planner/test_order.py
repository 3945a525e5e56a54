"""Whether rows are ordered, and by what: f_k from rendered rows, D_k from counts, and what the cache finds anyway."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nightshift.planner.inputs import known_of, model_for
from nightshift.planner.order import BUCKET_ROWS, candidates, order_of, shares
from nightshift.planner.plan import Decision, decide
from nightshift.planner.speed import Known, tokens_of
from nightshift.run.order import Counts, Order
from nightshift.run.pins import Pins
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.unit import model_configs as configs

pytestmark = pytest.mark.unit

QUERY = "SELECT id, manual, chapter, question FROM `d.t` WHERE day = @partition"
TYPES = {"id": "INT64", "manual": "STRING", "chapter": "STRING", "question": "STRING", "spot": "GEOGRAPHY"}
ROWS = 1_000_000


def a_job(user: str = "{{ manual }} {{ question }}", **changes: Any) -> JobSpec:
    chat = {"task": "chat", "request": {"user": user, "max_tokens": 16}, "source__query": QUERY}
    return a_spec(
        **{**chat, "engine": {"max_num_seqs": 64, "max_model_len": 8192}, "compute__profile": "gpu-l4-spot", **changes}
    )


def sampled(manuals: int = 1_000_000, manual: int = 2000, question: int = 2000) -> list[dict[str, Any]]:
    """Rows of a sample; texts of some characters each, of which no two begin alike unless they are one."""
    draw = random.Random(7)

    def text(number: int, length: int) -> str:
        return random.Random(number).randbytes(length).hex()[:length]

    return [
        {
            "id": n,
            "manual": text(1 + draw.randrange(manuals), manual),
            "chapter": text(-1 - n, 400),
            "question": text(10**7 + n, question),
        }
        for n in range(40)
    ]


def decided(
    spec: JobSpec, distinct: list[int], *, largest: list[int] | None = None, rows: int = ROWS, **sample: Any
) -> Order | None:
    columns = candidates(spec, TYPES)
    found = Counts(rows, columns, tuple(distinct), tuple(largest or [1] * len(distinct)))
    assert len(distinct) == len(columns)
    known = known_of(spec, Pins(), sample=lambda *_: sampled(**sample), counts=found, environment={"HF_HUB_OFFLINE": "1"})
    return order_of(spec, rows, known)


def with_model(spec: JobSpec, distinct: list[int]) -> Order | None:
    """As `decided`, of 1,000 tokens a row, half of them shared, on a worker that caches some 33,000 tokens."""
    counts = Counts(ROWS, ("manual", "question"), tuple(distinct), (1, 1))
    model = model_for(spec, configs.LLAMA3_8B)
    return order_of(spec, ROWS, Known(tokens_of(spec, 1000.0, "a sample"), model, counts=counts, shared=(0.0, 0.5, 1.0)))


class TestCandidates:
    @pytest.mark.parametrize(
        ("changes", "found"),
        [
            ({}, ("manual", "question")),
            ({"user": "{{ question }} {% if id %}{{ manual }}{% endif %}"}, ("question", "id", "manual")),
            ({"user": "id: {{ question }}", "request__system": "About {{ chapter }}, {{ question }}"}, ("chapter", "question")),
            ({"user": "{{ manual }} {{ spot }} {{ question }}"}, ("manual",)),
            ({"user": "No column."}, ()),
            ({"source__order": "none"}, ()),
            ({"source__order": ["question", "id"]}, ("question", "id")),
            ({"source__query": f"{QUERY} ORDER BY id"}, ()),
            ({"engine__args": {"enable-prefix-caching": False}}, ()),
            ({"engine__args": {"no_enable_prefix_caching": True}}, ()),
            ({"task": "embedding", "request": {"input": "{{ manual }} {{ question }}"}}, ()),
            ({"task": "completion", "request": {"prompt": "{{ manual }} {{ question }}"}}, ("manual", "question")),
            ({"task": "image", "request": {"image": "id", "system": "{{ manual }}", "user": "{{ question }}"}}, ("manual",)),
        ],
    )
    def test_are_what_the_prompt_names_first(self, changes: dict[str, Any], found: tuple[str, ...]) -> None:
        assert candidates(a_job(**changes), TYPES) == found


class TestShares:
    def test_are_of_the_rendered_prompt(self) -> None:
        spec = a_job("{{ manual }} {{ question }}", request__system="x" * 999)
        found = shares(spec, ("manual", "question"), sampled(), 999 + 4001)

        assert [round(share, 2) for share in found] == [0.2, 0.6, 1.0]

    def test_a_filter_and_a_condition_are_rendered_too(self) -> None:
        spec = a_job("{{ manual[:100] }}{% if id >= 0 %} {{ question }}{% endif %}")

        assert [round(share, 2) for share in shares(spec, ("manual", "id"), sampled(), 2101)] == [0.0, 0.05, 0.05]

    def test_rows_that_become_dead_letters_have_none(self) -> None:
        assert shares(a_job("{{ manual.nothing.there }}"), ("manual",), sampled()[:3], 10) in ((), (0.0, 0.0))
        assert shares(a_job(), ("manual",), [], 10) == ()


class TestDecision:
    def test_shared_beginnings_are_worth_an_order(self) -> None:
        found = decided(a_job(), [20_000, ROWS])

        assert found is not None
        assert (found.columns, found.buckets, found.spread) == (("manual",), 1, 1)
        assert found.why == (
            "ordered by manual, which should save 48% of the prompts' tokens: about 20,000 values in 1,000,000 rows, and rows "
            "of one value share 50% of their prompts (source.order: auto)"
        )

    @pytest.mark.parametrize(
        ("distinct", "sample", "saved"),
        [
            ([ROWS, ROWS], {}, "0%"),  # Nothing is shared.
            ([1, ROWS], {"manuals": 1}, "0%"),  # All rows share it, and the cache has it anyway.
            ([960_000, ROWS], {}, "2%"),
            ([20_000, ROWS], {"manual": 40}, "0%"),  # Less than a block.
            ([20_000, ROWS], {"manual": 100}, "3%"),
        ],
    )
    def test_what_saves_little_is_left_as_it_is(self, distinct: list[int], sample: dict[str, Any], saved: str) -> None:
        found = decided(a_job(), distinct, **sample)

        assert found == Order(why=f"not ordered: that would save {saved} of the prompts' tokens (source.order: auto)")

    @pytest.mark.parametrize(("manuals", "ordered"), [(2, False), (10, False), (1_000, True), (100_000, True)])
    def test_beginnings_that_the_cache_holds_all_need_no_order(self, manuals: int, ordered: bool) -> None:
        found = with_model(a_job(), [manuals, ROWS])

        assert found is not None
        assert bool(found.buckets) is ordered, found.why

    def test_a_column_in_the_middle_counts_with_those_before_it(self) -> None:
        """Each row has a chapter of its own before what is shared."""
        assert not decided(a_job("{{ chapter }} {{ manual }} {{ question }}"), [ROWS, ROWS, ROWS]).buckets  # type: ignore[union-attr]
        both = decided(a_job("{{ chapter }} {{ manual }} {{ question }}"), [100, 5_000, ROWS])
        assert both is not None
        assert both.columns == ("chapter", "manual")

    def test_more_columns_are_named_only_if_they_save_more(self) -> None:
        found = decided(a_job("{{ manual }} {{ id }} {{ question }}"), [20_000, 20_100, ROWS])

        assert found is not None
        assert found.columns == ("manual",)

    def test_without_columns_or_rows_or_a_sample_nothing_is_said(self) -> None:
        assert decided(a_job("No column."), []) is None
        assert decided(a_job(), [0, 0], rows=0) is None
        counts = Counts(ROWS, ("manual", "question"), (5, ROWS), (1, 1))
        assert order_of(a_job(), ROWS, Known(tokens_of(a_job()), counts=counts)) is None
        assert order_of(a_job(source__order="none"), ROWS, Known(tokens_of(a_job()))) is None


class TestBuckets:
    @pytest.mark.parametrize(
        ("rows", "buckets"), [(1, 1), (BUCKET_ROWS, 1), (BUCKET_ROWS + 1, 2), (10**8, 50), (10**11, 1_000)]
    )
    def test_hold_two_million_rows(self, rows: int, buckets: int) -> None:
        found = order_of(a_job(source__order=["manual"]), rows, Known(tokens_of(a_job())))

        assert found is not None
        assert (found.columns, found.buckets, found.spread) == (("manual",), buckets, 1)

    def test_are_decided_by_the_fewest_columns_of_which_no_value_fills_one(self) -> None:
        job, rows = a_job("{{ manual }} {{ chapter }} {{ question }}"), 10**8
        even = decided(job, [10**4, 10**6, rows], largest=[10**5, 10**3, 1], rows=rows)
        skewed = decided(job, [10**4, 10**6, rows], largest=[10**7, 10**6, 1], rows=rows)

        assert even is not None
        assert skewed is not None
        assert (even.columns, even.spread) == (("manual", "chapter"), 1)
        assert (skewed.columns, skewed.spread) == (("manual", "chapter"), 2)

    def test_one_value_of_too_many_rows_is_not_sorted(self) -> None:
        found = decided(a_job(), [10**6, 10**8], largest=[3 * 10**7, 1], rows=10**8)

        assert found is not None
        assert not found.buckets
        assert "about 30,000,000 rows have one value, more than BigQuery sorts together" in found.why

    def test_an_order_that_the_job_states_is_tried_in_any_case(self) -> None:
        spec = a_job(source__order=["manual", "chapter"])
        found = decided(spec, [10**6, 10**7], largest=[3 * 10**7, 2 * 10**7], rows=10**8)

        assert found == Order(("manual", "chapter"), 50, 2, "ordered by manual, chapter (source.order)")


def test_the_decision_keeps_it_and_says_why() -> None:
    spec = a_job(source__order=["manual"], compute__workers=1)
    decision = decide(spec, ROWS, Known(tokens_of(spec)))

    assert decision.order == Order(("manual",), 1, 1, "ordered by manual (source.order)")
    assert decision.reasons[-1] == decision.order.why
    assert Decision.from_json(decision.to_json()) == decision
    earlier = {name: value for name, value in decision.to_json().items() if name != "order"}
    assert Decision.from_json(earlier).order is None
