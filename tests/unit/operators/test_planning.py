"""What the planner is told: the model's files, and the tokens of a sample."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from nightshift.operators.planning import IMAGE_TOKENS, known_of
from nightshift.planner.record import Record, Workload
from nightshift.planner.speed import CHARS_PER_TOKEN, INPUT_TOKENS, SPECIAL_TOKENS, Basis, speed_of
from nightshift.run.files import CONFIG, TOKENIZER, NoFile, read_file
from nightshift.run.pins import Pins
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.unit import model_configs as configs

pytestmark = pytest.mark.unit

COMMIT = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"


@pytest.fixture
def hub(tmp_path: Path) -> dict[str, str]:
    """The environment of a Hugging Face cache that holds the model of `a_spec`, as its client lays it out."""
    folder = tmp_path / "models--org--m/snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps(configs.LLAMA3_8B))
    (tmp_path / "models--org--m/refs").mkdir()
    (tmp_path / "models--org--m/refs/r1").write_text(COMMIT)
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.enable_truncation(3)
    words.enable_padding(length=50)
    words.save(str(folder / TOKENIZER))
    return {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}


class Rows:
    """A sample; it remembers which columns it was asked for."""

    def __init__(self, *rows: Mapping[str, Any]) -> None:
        self.rows = rows
        self.columns: Sequence[str] = ()

    def __call__(self, columns: Sequence[str], most: int) -> Sequence[Mapping[str, Any]]:
        self.columns = columns
        return self.rows[:most]


def test_the_config_comes_from_the_cache(hub: dict[str, str]) -> None:
    """By the words of the job, or by the commit that the run pins."""
    for pins in (Pins(), Pins(commit=COMMIT)):
        known = known_of(a_spec(), pins, environment=hub)

        assert known.model is not None
        assert known.model.parameters == pytest.approx(8.03e9, rel=0.01)
        assert known.tokens.input == INPUT_TOKENS
        assert "assumed" in known.tokens.source


def test_a_sample_is_counted_by_the_models_own_tokenizer(hub: dict[str, str]) -> None:
    """Without its cutting and padding."""
    rows = Rows({"text": "a a a a"}, {"text": "a b"})

    known = known_of(a_spec(request__input="a {{ text }}"), Pins(), sample=rows, environment=hub)

    assert (known.tokens.input, list(rows.columns)) == (4.0, ["text"])
    assert known.tokens.source == "4 input tokens per row: a sample of 2 rows, the model's tokenizer"


def test_without_a_tokenizer_characters_count(hub: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "models--org--m/snapshots" / COMMIT / TOKENIZER).unlink()

    known = known_of(a_spec(), Pins(), sample=Rows({"text": "x" * 400}), environment=hub)

    assert known.tokens.input == 400 / CHARS_PER_TOKEN + SPECIAL_TOKENS
    assert "4 characters per token, because tokenizer.json of hf://org/m" in known.tokens.source


@pytest.mark.parametrize("rows", [(), ({"text": None},)])
def test_a_query_without_a_row_to_look_at(hub: dict[str, str], rows: tuple[Mapping[str, Any], ...]) -> None:
    assert known_of(a_spec(), Pins(), sample=Rows(*rows), environment=hub).tokens.input == INPUT_TOKENS


def test_conversations_and_documents_are_texts_too(hub: dict[str, str]) -> None:
    chat = a_spec(task="chat", request={"messages_column": "said", "max_tokens": 10})
    rows = Rows({"said": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]})

    known = known_of(chat, Pins(), sample=rows, environment=hub)

    assert (known.tokens.input, known.tokens.output) == (3, 10)
    assert "10 output tokens per row, the limit (max_tokens)" in known.tokens.source


def test_each_document_is_read_with_the_query(hub: dict[str, str]) -> None:
    spec = a_spec(task="rerank", request={"query": "{{ text }}", "documents": "found"})
    rows = Rows({"text": "a a a", "found": ["b", "c d", "e"]}, {"text": "a", "found": None}, {"text": "a", "found": []})

    known = known_of(spec, Pins(), sample=rows, environment=hub)

    assert (known.tokens.input, known.tokens.texts) == (13.0, 3.0)
    assert known.tokens.source == "13 input tokens per row: a sample of 1 rows, the model's tokenizer, 3 documents per row"
    assert known_of(spec, Pins(), input_tokens=9000, environment=hub).tokens.texts is None


def test_an_image_is_not_fetched(hub: dict[str, str]) -> None:
    spec = a_spec(task="image", request={"image": "picture", "user": "what is {{ text }}", "max_tokens": 10})
    rows = Rows({"text": "a"})

    known = known_of(spec, Pins(), sample=rows, environment=hub)

    assert list(rows.columns) == ["text"]
    assert known.tokens.input == 3 + IMAGE_TOKENS


def test_the_size_of_the_weights_stands_for_a_config(tmp_path: Path) -> None:
    environment = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    found = known_of(a_spec(), Pins(weights_bytes=10**9), environment=environment)
    stated = known_of(a_spec(compute__weights_gib=16), Pins(weights_bytes=10**9), environment=environment)
    nothing = known_of(a_spec(), Pins(), environment=environment)

    assert found.model is not None
    assert found.model.weights_bytes == 10**9
    assert stated.model is not None
    assert stated.model.weights_bytes == 16 << 30
    assert nothing.model is None
    assert "config.json of hf://org/m at 'r1' cannot be downloaded" in nothing.why_not


def test_a_config_that_is_not_one(hub: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "models--org--m/snapshots" / COMMIT / CONFIG).write_text("<html>")

    assert known_of(a_spec(), Pins(), environment=hub).why_not.startswith("its config.json is not JSON")


def test_a_config_that_is_json_and_no_object(hub: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "models--org--m/snapshots" / COMMIT / CONFIG).write_text("[]")

    assert known_of(a_spec(), Pins(), environment=hub).why_not == "its config.json is not a JSON object"


def test_a_file_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from obstore.store import LocalStore

    spec = JobSpec.model_validate(
        {**a_spec().model_dump(mode="json"), "model": {"name": "m", "uri": "gs://models/m", "revision": "r"}}
    )
    (tmp_path / CONFIG).write_text("{}")
    monkeypatch.setattr("nightshift.run.files.open_folder", lambda *_: LocalStore(tmp_path))

    assert read_file(spec, CONFIG, Pins()) == b"{}"
    with pytest.raises(NoFile, match=r"there is no gs://models/m/tokenizer\.json"):
        read_file(spec, TOKENIZER, Pins())


def test_a_hub_that_does_not_answer_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client tries for half a minute."""
    asked = []

    def fails(repository: str, name: str, **_: Any) -> str:
        asked.append(name)
        raise OSError("no route to host\nmore")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fails)
    known = known_of(a_spec(), Pins(), sample=Rows({"text": "x" * 40}), environment={"HF_HUB_CACHE": str(tmp_path)})

    assert asked == [CONFIG]
    assert known.why_not == "config.json of hf://org/m at 'r1' cannot be downloaded: no route to host"
    assert known.tokens.input == 40 / CHARS_PER_TOKEN + SPECIAL_TOKENS


def test_answers_are_as_long_as_a_recorded_run_has_them(hub: dict[str, str]) -> None:
    """For profiles that have no record of their own; what a person says comes first."""
    spec = a_spec(task="chat", request={"user": "{{ text }}", "max_tokens": 500}, compute={"profile": "gpu-l4-spot"})
    workload = Workload("hf://org/m", "r1", "chat", "0", {}, "l4", 1)
    record = Record(workload, "job/2026-11-19/0123456789abcdef", "", 1000, 1, 100.0, 100.0, 5000, 60_000, 0)

    known = known_of(spec, Pins(), records={"gpu-l4-spot": record}, environment=hub)
    said = known_of(spec, Pins(), records={"gpu-l4-spot": record}, output_tokens=7, environment=hub)

    assert (known.tokens.output, said.tokens.output) == (60, 7)
    assert "60 output tokens per row, measured in run job/2026-11-19/0123456789abcdef" in known.tokens.source
    assert speed_of(spec, spec.compute.worker(), known).words == "measured in run job/2026-11-19/0123456789abcdef"
    assert speed_of(spec, spec.compute.worker("gpu-h100"), known).basis is Basis.ESTIMATED
