"""What the planner is told: the model's files, and the tokens of a sample."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from obstore.store import MemoryStore
from tokenizers import Tokenizer, models, pre_tokenizers

from nightshift.planner import tokens
from nightshift.planner.inputs import IMAGE_TOKENS, known_of
from nightshift.planner.record import Record, Workload
from nightshift.planner.speed import CHARS_PER_TOKEN, INPUT_TOKENS, SPECIAL_TOKENS, Basis, speed_of
from nightshift.run.models.model_files import BYTES_MAX, CONFIG, TOKENIZER, NoFile, read_file
from nightshift.run.order import Counts
from nightshift.run.pins import Pins
from nightshift.spec import JobSpec
from nightshift.tasks.base import SlowTemplate, Text
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

    assert (known.tokens.input, list(rows.columns)) == (4.0, ["id", "text"])
    assert known.tokens.source == "4 input tokens per row: a sample of 2 rows, the model's tokenizer"


@pytest.mark.parametrize(
    ("most", "overlong", "said"),
    [
        (2, "truncate", " (the engine reads at most 2, engine.max_model_len; longer rows are cut)"),
        (2, "dead_letter", " (the engine reads at most 2, engine.max_model_len; longer rows are dead letters)"),
        (3, "truncate", ""),
        (None, "truncate", ""),
    ],
)
def test_it_says_how_much_of_long_rows_the_engine_reads(
    hub: dict[str, str], most: int | None, overlong: str, said: str
) -> None:
    spec = a_spec(engine__max_model_len=most, request__overlong=overlong)

    source = known_of(spec, Pins(), sample=Rows({"text": "a a a"}), environment=hub).tokens.source
    assert source == f"3 input tokens per row: a sample of 1 row, the model's tokenizer{said}"


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
    assert known.tokens.source == "13 input tokens per row: a sample of 1 row, the model's tokenizer, 3 documents per row"
    assert known_of(spec, Pins(), input_tokens=9000, environment=hub).tokens.texts is None


def test_an_image_is_not_fetched(hub: dict[str, str]) -> None:
    spec = a_spec(task="image", request={"image": "picture", "user": "what is {{ text }}", "max_tokens": 10})
    rows = Rows({"text": "a"})

    known = known_of(spec, Pins(), sample=rows, environment=hub)

    assert list(rows.columns) == ["id", "text"]
    assert known.tokens.input == 3 + IMAGE_TOKENS


def test_after_a_row_whose_template_takes_too_long_no_other_is_tried(
    hub: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such row takes seconds of the task plan: once for the tokens, once for NULLs and once for an order."""
    tried: list[str] = []

    def of(_: Text, row: Mapping[str, Any]) -> str:
        tried.append(row["text"])
        if row["text"] == "slow":
            raise SlowTemplate("the template failed on this row: it took more than 5 s of processor time")
        return str(row["text"])

    monkeypatch.setattr(Text, "of", of)
    rows = [{"id": number, "text": "a" if number < 2 else "slow", "extra": None} for number in range(20)]
    spec = a_spec(task="chat", request={"user": "{{ text }}", "max_tokens": 10})
    counts = Counts(20, ("text",), (2,), (18,))

    known = known_of(spec, Pins(), sample=Rows(*rows), counts=counts, environment=hub)

    assert "a sample of 2 rows" in known.tokens.source
    assert tried.count("slow") == 3


def test_what_is_copied_into_chunks_is_measured_in_the_sampled_rows(hub: dict[str, str]) -> None:
    """In bytes of UTF-8, lists and structs with all that is in them."""
    spec = a_spec(source__pass_through=["terms", "tags", "none"])
    rows = Rows(
        {"id": 1, "text": "a", "terms": "\u00e9" * 100, "tags": [{"a": "xy"}, {"a": "z"}], "none": None},
        {"id": 2, "text": "a", "terms": "a" * 400, "tags": [], "none": b"12"},
    )

    known = known_of(spec, Pins(), sample=rows, environment=hub)

    assert known.copied == {"id": 8, "terms": 300, "tags": 1.5, "none": 5}
    assert known_of(spec, Pins(), environment=hub).copied == {}


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
    assert nothing.why_not == "config.json of hf://org/m at 'r1' is not in the cache of this machine"


@pytest.mark.parametrize(
    ("kind", "status", "gone"),
    [(RevisionNotFoundError, 404, True), (RepositoryNotFoundError, 404, True), (RepositoryNotFoundError, 401, False)],
)
def test_a_model_that_the_hub_does_not_have_is_not_just_a_config_that_is_not_known(
    monkeypatch: pytest.MonkeyPatch, kind: type[HfHubHTTPError], status: int, gone: bool
) -> None:
    """A refusal for want of a token is: the pods may have one."""

    def refused(*_: Any, **__: Any) -> Any:
        raise kind("no", response=httpx2.Response(status, request=httpx2.Request("GET", "https://huggingface.co")))

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refused)

    known = known_of(a_spec(model__revision=COMMIT), Pins(), environment={})

    assert bool(known.absent) is gone
    assert not gone or known.absent.startswith(f"The engine will not find hf://org/m at {COMMIT}: the Hub has no such")


def test_a_folder_without_a_file_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.run.models.model_files.open_folder", lambda *_: MemoryStore())
    monkeypatch.setattr("nightshift.run.models.weights.open_folder", lambda *_: MemoryStore())

    known = known_of(a_spec(model__uri="gs://models/m"), Pins(), environment={})

    assert known.absent.startswith("model.uri: there are no files in gs://models/m.")


def words(unknown: str | None = None) -> Tokenizer:
    """A tokenizer that knows one word."""
    return Tokenizer(models.WordLevel({"a": 1}, unk_token=unknown))


def without_a_token_for_the_unknown() -> str:
    return words().to_str()


def with_a_template_of_a_token_that_is_not_there() -> str:
    """Rust panics, which in Python is no Exception."""
    found = json.loads(Tokenizer(models.WordLevel({"a": 1, "[CLS]": 0}, unk_token="[CLS]")).to_str())
    part = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
    found["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [part, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [part],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [0], "tokens": ["[CLS]"]}},
    }
    found["post_processor"]["special_tokens"] = {}
    return json.dumps(found)


def with_a_regular_expression_that_never_ends() -> str:
    found = json.loads(words("a").to_str())
    found["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    return json.dumps(found)


def nested_too_deeply() -> str:
    return "[" * 50_000


@pytest.mark.parametrize(
    "broken",
    [
        without_a_token_for_the_unknown,
        with_a_template_of_a_token_that_is_not_there,
        with_a_regular_expression_that_never_ends,
        nested_too_deeply,
        lambda: "{}",
        lambda: "",
        lambda: "null",
        lambda: "<html>",
    ],
)
def test_a_tokenizer_that_cannot_count_ends_no_night(hub: dict[str, str], tmp_path: Path, broken: Callable[[], str]) -> None:
    (tmp_path / "models--org--m/snapshots" / COMMIT / TOKENIZER).write_text(broken())
    text = "x" * 400

    known = known_of(a_spec(), Pins(), sample=Rows({"text": text}), environment=hub)

    assert known.tokens.input == 400 / CHARS_PER_TOKEN + SPECIAL_TOKENS
    assert "4 characters per token, because " in known.tokens.source
    assert "\n" not in known.tokens.source


def test_a_tokenizer_that_takes_too_long_is_not_waited_for(hub: dict[str, str]) -> None:
    with pytest.raises(tokens.Uncountable, match=r"the tokenizer took more than 0\.001 s"):
        tokens.count([["a"]], b"{}", timeout_s=0.001)


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ("import os; os.abort()", "ended its process with -6"),
        ("print('[]')", "ended its process with 0"),
        ("print('{}')", "with 0"),
    ],
)
def test_a_tokenizer_that_ends_its_process(monkeypatch: pytest.MonkeyPatch, ends: str, says: str) -> None:
    monkeypatch.setattr(tokens, "_PROGRAM", ends)

    with pytest.raises(tokens.Uncountable, match=says):
        tokens.count([["a"]], b"{}")


def test_the_tokenizers_process_knows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_X", "a secret")
    monkeypatch.setattr(tokens, "_PROGRAM", "import json, os; print(json.dumps({'why': ' '.join(sorted(os.environ))}))")

    with pytest.raises(tokens.Uncountable) as caught:
        tokens.count([["a"]], b"{}")
    assert "AIRFLOW" not in str(caught.value)
    assert "PYTHONPATH" in str(caught.value)


def test_half_a_pair_of_surrogates() -> None:
    with pytest.raises(tokens.Uncountable, match="the tokenizer cannot read the texts"):
        tokens.count([["\ud800"]], words("a").to_str().encode())


@pytest.mark.parametrize("name", [CONFIG, TOKENIZER])
def test_a_file_that_is_too_large_is_not_read(hub: dict[str, str], tmp_path: Path, name: str) -> None:
    with open(tmp_path / "models--org--m/snapshots" / COMMIT / name, "wb") as file:
        file.truncate(BYTES_MAX[name] + 1)

    with pytest.raises(NoFile, match=r"bytes, more than the \d+ MiB that are read of such a file"):
        read_file(a_spec(), name, Pins(), environment=hub)


def test_a_file_in_a_bucket_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from obstore.store import LocalStore

    monkeypatch.setattr("nightshift.run.models.model_files.open_folder", lambda *_: LocalStore(tmp_path))
    with open(tmp_path / CONFIG, "wb") as file:
        file.truncate(BYTES_MAX[CONFIG] + 1)

    with pytest.raises(NoFile, match="16,777,217 bytes, more than the 16 MiB"):
        read_file(a_spec(model__uri="gs://models/m"), CONFIG, Pins())


def test_a_config_that_is_not_one(hub: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "models--org--m/snapshots" / COMMIT / CONFIG).write_text("<html>")

    assert known_of(a_spec(), Pins(), environment=hub).why_not.startswith("its config.json is not JSON")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        '{"a":' * 50_000,
        '{"text_config":' * 900 + "1" + "}" * 900,
        '{"num_experts": {"ffn_config":' * 400 + "1" + "}" * 800,
        '{"hidden_size": 1' + "0" * 5000 + "}",
        '{"hidden_size": 1e400, "num_hidden_layers": NaN}',
        '"\\ud800"',
        "",
    ],
    ids=["lists", "mappings", "text configs", "experts", "digits", "infinity", "surrogate", "empty"],
)
def test_no_config_ends_a_night(hub: dict[str, str], tmp_path: Path, text: str) -> None:
    (tmp_path / "models--org--m/snapshots" / COMMIT / CONFIG).write_text(text)

    known = known_of(a_spec(), Pins(weights_bytes=10**9), environment=hub)

    assert known.model is not None
    assert known.model.weights_bytes == 10**9


def test_a_config_that_is_json_and_no_object(hub: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "models--org--m/snapshots" / COMMIT / CONFIG).write_text("[]")

    assert known_of(a_spec(), Pins(), environment=hub).why_not == "its config.json is not a JSON object"


def test_a_file_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from obstore.store import LocalStore

    spec = JobSpec.model_validate(
        {**a_spec().model_dump(mode="json"), "model": {"name": "m", "uri": "gs://models/m", "revision": "r"}}
    )
    (tmp_path / CONFIG).write_text("{}")
    monkeypatch.setattr("nightshift.run.models.model_files.open_folder", lambda *_: LocalStore(tmp_path))

    assert read_file(spec, CONFIG, Pins()) == b"{}"
    with pytest.raises(NoFile, match=r"there is no gs://models/m/tokenizer\.json"):
        read_file(spec, TOKENIZER, Pins())


def test_a_hub_whose_name_is_not_known_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    environment = {"HF_HUB_CACHE": str(tmp_path), "HF_ENDPOINT": "https://hub.invalid"}  # RFC 6761: never resolves

    with pytest.raises(NoFile, match=r"is not in the cache of this machine, and the Hub is out of reach \(hub\.invalid: "):
        read_file(a_spec(), CONFIG, Pins(), environment=environment)


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
