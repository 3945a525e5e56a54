"""A DAG's page shows what goes to the model, for every kind of request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nightshift.operators.dag_docs import dag_docs
from nightshift.spec import fingerprint
from tests.builders import a_spec

pytestmark = pytest.mark.unit

FILE = Path("dags/jobs/a_job.yaml")


@pytest.mark.parametrize(
    ("task", "request_", "shown"),
    [
        ("embedding", {"input": "{{ text }}"}, "```jinja\n{{ text }}\n```"),
        (
            "chat",
            {"system": "S", "user": "{{ text }}"},
            "**system**:\n\n```jinja\nS\n```\n\n**user**:\n\n```jinja\n{{ text }}\n```",
        ),
        ("chat", {"messages_column": "turns"}, "The column **turns** (**messages\\_column**)"),
        ("image", {"image": "photo", "user": "What?"}, "```jinja\nWhat?\n```\n\nThe column **photo** (**image**)"),
    ],
)
def test_what_the_model_sees(task: str, request_: dict[str, Any], shown: str) -> None:
    page = dag_docs(a_spec(task=task, request=request_), FILE)

    assert f"**What the model sees of a row**\n\n{shown}\n\n**Another day**" in page


@pytest.mark.parametrize(("overlong", "fate"), [("truncate", "| is truncated |"), ("dead_letter", "| becomes a dead letter |")])
def test_what_becomes_of_overlong_texts(overlong: str, fate: str) -> None:
    assert f"| Text over the model's length {fate}" in dag_docs(a_spec(request__overlong=overlong), FILE)


def test_a_page_says_which_file_it_is_of_and_what_the_file_says() -> None:
    spec = a_spec()
    told = fingerprint.said_by(dag_docs(spec, FILE))

    assert told == ("a_job.yaml", fingerprint.of(spec))
    assert fingerprint.of(a_spec(source__query=f"{spec.source.query} LIMIT 1")) != told[1]
    assert fingerprint.said_by("| Owner | me |") is None
