"""A model that reasons, in a real vLLM with a reasoning parser: answers that end inside the reasoning, behind it, or as they
should, in nights, streams and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from local import models
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.integration.driver.batches import BatchProcess, read_lines, write_requests
from tests.integration.driver.tables import dead, run
from tests.integration.driver.vllm import Vllm
from tests.integration.stream.conftest import staged as staged
from tests.integration.stream.processes import Staged

pytestmark = pytest.mark.integration

GREEDY: Final = {"temperature": 0, "max_tokens": 16}
TEXTS: Final = [f"package {n} parses {('YAML', 'JSON', 'HTML')[n % 3]}" for n in range(24)]
SCHEMA: Final = {
    "type": "object",
    "properties": {"label": {"enum": ["bug", "feature"]}, "urgent": {"type": "boolean"}},
    "required": ["label", "urgent"],
    "additionalProperties": False,
}


TEMPLATE: Final = (
    r"{%- for message in messages -%}{{ '<|turn|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}{%- endfor -%}"
    r"{{ '<|turn|>assistant\n' }}{%- if enable_thinking is defined and not enable_thinking -%}{{ '</think>' }}{%- endif -%}"
)
"""The model's own, which can switch thinking off besides."""


def a_job(**request: Any) -> JobSpec:
    model = models.ensure(models.TINY_THINKER)
    return a_spec(
        task="chat",
        request={"user": "{{ text }}", **request},
        model={"name": "tiny", "uri": model.uri, "revision": model.revision},
        engine={
            "max_num_seqs": 16,
            "max_model_len": 512,
            "dtype": "float32",
            "args": {
                "enforce-eager": True,
                "chat-template": TEMPLATE,
                "reasoning-parser": "deepseek_r1",
                "structured-outputs-config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
            },
        },
    )


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = Vllm(a_job(), tmp_path_factory.mktemp("vllm") / "vllm.log")
    server.await_health()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def said(vllm: Vllm) -> list[dict[str, Any]]:
    """What the engine itself says to each text: the choices."""
    bodies = [{"model": "tiny", "messages": [{"role": "user", "content": text}], **GREEDY} for text in TEXTS]
    choices = [vllm.ask("/v1/chat/completions", body)["choices"][0] for body in bodies]
    inside = [choice for choice in choices if choice["message"]["content"] is None]
    assert 4 < len(inside) < len(TEXTS) - 4, "some end inside the reasoning, and some do not"
    assert all(choice["message"]["reasoning"] for choice in inside)
    return choices


def texts_of(choice: dict[str, Any]) -> tuple[str, str | None]:
    """The answer and the reasoning."""
    return choice["message"]["content"] or "", choice["message"]["reasoning"] or None


def test_a_night_keeps_the_reasoning(tmp_path: Path, vllm: Vllm, said: list[dict[str, Any]]) -> None:
    spec = a_job(reasoning="keep", truncated="keep", **GREEDY)

    rows = run(tmp_path, vllm.url, spec, {"text": TEXTS})

    assert dead(rows) == {}
    assert [(rows[n]["prediction"], rows[n]["reasoning"]) for n in range(len(TEXTS))] == [texts_of(each) for each in said]


def test_a_night_that_does_not_keep_what_was_cut(tmp_path: Path, vllm: Vllm, said: list[dict[str, Any]]) -> None:
    rows = run(tmp_path, vllm.url, a_job(truncated="dead_letter", **GREEDY), {"text": TEXTS})

    assert dead(rows) == {n: "truncated" for n, each in enumerate(said) if each["finish_reason"] == "length"}
    for number, choice in enumerate(said):
        row = rows[number]
        assert "reasoning" not in row
        assert row["dead_reason"] or row["prediction"] == texts_of(choice)[0]
        if choice["finish_reason"] == "length":
            assert ("all of them reasoning" in row["dead_message"]) == (choice["message"]["content"] is None)


def test_the_chat_template_gets_its_arguments(tmp_path: Path, vllm: Vllm, said: list[dict[str, Any]]) -> None:
    given: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
    body = {"model": "tiny", **GREEDY, **given}
    asked = [{**body, "messages": [{"role": "user", "content": text}]} for text in TEXTS]
    prompts = [vllm.ask("/tokenize", {**each, **more})["tokens"] for each in asked[:1] for more in ({}, dict.fromkeys(given))]
    assert len(prompts[0]) > len(prompts[1]), "the template writes something else"

    rows = run(tmp_path, vllm.url, a_job(reasoning="keep", **given, **GREEDY), {"text": TEXTS})

    answers = [texts_of(vllm.ask("/v1/chat/completions", each)["choices"][0]) for each in asked]
    assert [(rows[n]["prediction"], rows[n]["reasoning"]) for n in range(len(TEXTS))] == answers
    assert answers != [texts_of(each) for each in said]


STOP: Final = [" ", "\n", "e", "s"]


@pytest.mark.parametrize("truncated", ["keep", "dead_letter"])
def test_stop_strings_inside_the_reasoning_make_no_whole_answers(tmp_path: Path, vllm: Vllm, truncated: str) -> None:
    """vLLM looks for them in the reasoning, too, and says ``finish_reason: stop`` and ``content: null``."""
    bodies = [{"model": "tiny", "messages": [{"role": "user", "content": text}], **GREEDY, "stop": STOP} for text in TEXTS]
    choices = [vllm.ask("/v1/chat/completions", body)["choices"][0] for body in bodies]
    unsaid = [n for n, each in enumerate(choices) if not each["message"]["content"]]
    stopped = [n for n in unsaid if choices[n]["finish_reason"] == "stop"]
    assert len(stopped) > len(TEXTS) // 2, "most end at such a string"

    job = a_job(truncated=truncated, stop=STOP, **GREEDY)
    rows = run(tmp_path, vllm.url, job, {"text": TEXTS})

    empty = [n for n, row in rows.items() if row["dead_reason"] is None and not row["prediction"].strip()]
    assert sorted(empty) == (unsaid if truncated == "keep" else [])
    if truncated == "dead_letter":
        assert {n: dead(rows).get(n) for n in unsaid} == dict.fromkeys(unsaid, "truncated")
        assert all("request.stop" in rows[n]["dead_message"] for n in stopped)


def test_typed_answers_follow_the_reasoning(tmp_path: Path, vllm: Vllm) -> None:
    """One that ends inside it is drawn again; the engine is not to blame."""
    spec = a_job(reasoning="keep", temperature=1, max_tokens=32, json_schema=SCHEMA)

    rows = run(tmp_path, vllm.url, spec, {"text": TEXTS})

    answered = [row for row in rows.values() if row["dead_reason"] is None]
    assert {row["prediction"]["label"] for row in answered} == {"bug", "feature"}
    assert all(row["reasoning"] is None or row["reasoning"] for row in answered)
    assert any(row["attempts"] > 1 for row in answered)
    assert set(dead(rows).values()) <= {"invalid_output"}
    for ordinal in dead(rows):
        assert "max_tokens" in rows[ordinal]["dead_message"]


def test_a_file_has_the_engines_own_replies(tmp_path: Path, vllm: Vllm, said: list[dict[str, Any]]) -> None:
    bodies = [{"model": "tiny", "messages": [{"role": "user", "content": text}], **GREEDY} for text in TEXTS]
    lines: list[dict[str, Any] | str] = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    source, out = write_requests(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"

    batch = BatchProcess("-i", source, "-o", out, "--base-url", vllm.url)
    assert batch.finish() == 0, batch.said

    written = read_lines(out)
    assert [line["response"]["status_code"] for line in written] == [200] * len(TEXTS)
    assert [line["response"]["body"]["choices"] for line in written] == [[each] for each in said]


def test_a_stream_keeps_the_reasoning(staged: Staged, vllm: Vllm, said: list[dict[str, Any]]) -> None:
    stage, engine = staged(), a_job().model_dump(mode="json", exclude_unset=True)
    request = {"user": "{{ text }}", "reasoning": "keep", "truncated": "keep", **GREEDY}
    document = yaml.safe_load(stage.file.read_text())
    document |= {"task": "chat", "request": request, "model": engine["model"], "engine": engine["engine"]}
    document["sink"]["column"] = "answer"
    stage.file.write_text(yaml.safe_dump(document))
    ids = stage.publish(*({"text": text} for text in TEXTS))
    with stage.subscriber(ENGINE_URL=vllm.url):
        stage.await_all_acknowledged()

    assert stage.dead() == []
    found = {name: (answer, reasoning) for name, answer, reasoning in stage.rows("nightshift_message_id, answer, reasoning")}
    assert [found[name] for name in ids] == [texts_of(each) for each in said]
