"""`benchmarks.gpu`: what its engines are started with on a card that this machine does not have, and its texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, gpu_engines
from benchmarks.gpu_engines import Bench, Side
from benchmarks.gpu_models import LLAMA_VOCABULARY, MODELS, REVISION, Words, collect, lay_out
from local import hub
from nightshift.jobset.manifest.server import server_args
from tests.builders import a_spec

pytestmark = pytest.mark.unit

WORDS = ["one", "two", "three", "Four", "x", "unused7"]


@pytest.fixture
def tokenizers(tmp_path: Path) -> Path:
    """As `collect` makes them, of two models that are no more than a vocabulary."""
    for name, kind, space in (("chat", "BPE", "\u0120"), ("bert", "WordPiece", "")):
        (tmp_path / name / "1_Pooling").mkdir(parents=True)
        vocabulary = {f"{space}{word}": number for number, word in enumerate(WORDS)}
        (tmp_path / name / "tokenizer.json").write_text(json.dumps({"model": {"type": kind, "vocab": vocabulary}}))
        (tmp_path / name / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 384}))
    collect(tmp_path / "chat", tmp_path / "bert", tmp_path / "kit")
    return tmp_path / "kit"


def engines_of(name: str, monkeypatch: pytest.MonkeyPatch, tokenizers: Path) -> Iterator[tuple[Side, str]]:
    """A stand-in for nvidia-smi: the memory of the card."""
    monkeypatch.setattr(gpu_engines, "_card_gib", lambda: 79.6)
    bench = Bench("python3", name, gpu_engines.profile_of(name), gpu.GPU, tokenizers, tokenizers, tokenizers, print)
    for sides, _ in gpu.groups(bench):
        assert sum(side.memory_gib for side in sides) < 0.95 * 79.6, "they share one card"
        for side in sides:
            if not side.inside:
                yield side, " ".join(server_args(a_spec(**gpu_engines.settings(bench, side))))


def test_on_an_h100_each_side_has_its_flags(monkeypatch: pytest.MonkeyPatch, tokenizers: Path) -> None:
    found = {side.name: flags for side, flags in engines_of("NVIDIA H100 80GB HBM3", monkeypatch, tokenizers)}

    before, after = found["chat, defaults of vllm serve"], found["chat, a job's defaults"]
    assert "--max-num-batched-tokens=8192 --no-disable-uvicorn-access-log" in before
    assert "--max-num-batched-tokens=16384 --disable-uvicorn-access-log" in after
    assert all("--max-num-seqs=1024" in each and "--load-format=dummy" in each for each in (before, after))
    assert "--api-server-count=4" in found["embeddings, 4 API servers"]
    assert "--runner=pooling" in found["embeddings, 1 API server"]
    # 64 whole prompts of 1,168 tokens, and 10 beginnings of 512.
    assert f"--num-gpu-blocks-override={64 * 73 + 10 * 32}" in found["order"]


def test_an_unknown_card_needs_a_profile() -> None:
    with pytest.raises(SystemExit, match="No profile is known for NVIDIA T4"):
        gpu_engines.profile_of("NVIDIA T4")


@pytest.mark.parametrize("name", ["1b", "bert"])
def test_a_model_is_found_offline_and_has_no_weights(tmp_path: Path, tokenizers: Path, name: str) -> None:
    lay_out(MODELS[name], tokenizers, tmp_path / "hub")

    folder = hub.snapshot(tmp_path / "hub", MODELS[name].repository, REVISION)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    assert config["hidden_size"] == MODELS[name].config["hidden_size"]
    assert not [path for path in folder.rglob("*") if path.suffix in (".bin", ".safetensors")]
    if name == "bert":
        assert json.loads((folder / "1_Pooling" / "config.json").read_text()) == {"word_embedding_dimension": 768}
    else:
        assert len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]) == LLAMA_VOCABULARY


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_texts_are_of_words_that_are_one_token_each(tokenizers: Path, kind: str) -> None:
    words = Words(tokenizers / kind / "tokenizer.json").text(50).split(" ")

    assert (len(words), set(words)) == (50, {"one", "two", "three"})
