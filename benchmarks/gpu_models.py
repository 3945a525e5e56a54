"""``python -m benchmarks.gpu_models FOLDER``: models for `benchmarks.gpu`. The folder gets two tokenizers, 4 MB.

Each model is a config and a tokenizer, without weights: vLLM makes them up (``--load-format dummy``).

The sizes are those of published models; what such a model answers means nothing. The Llamas have the tokenizer of SmolLM2
(`local.models`) with names of its own making up to their vocabulary, so that text is cut as by a real one; the embedding
model has MiniLM's.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from local import hub
from local import models as local_models

ORGANISATION: Final = "nightshift-local"
REVISION: Final = "dummy-1"
LLAMA_VOCABULARY: Final = 128_256
SEED: Final = 20261128

_LLAMA: Final[Mapping[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "vocab_size": LLAMA_VOCABULARY,
}
_BERT: Final[Mapping[str, Any]] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "attention_probs_dropout_prob": 0.1,
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}


@dataclass(frozen=True)
class Model:
    """config: beside `_LLAMA` or `_BERT`. words: what a report calls it."""

    name: str
    words: str
    generates: bool
    config: Mapping[str, Any]

    @property
    def repository(self) -> str:
        return f"{ORGANISATION}/{self.name}"


def _llama(words: str, name: str, width: int, inner: int, layers: int, heads: int, kv_heads: int, **more: Any) -> Model:
    config = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads}
    return Model(name, words, True, {**config, "num_key_value_heads": kv_heads, "head_dim": width // heads, **more})


def _bert(words: str, name: str, width: int, layers: int) -> Model:
    config = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers, "num_attention_heads": 12}
    return Model(name, words, False, config)


MODELS: Final = {
    "tiny": _llama("a Llama of 4 layers", "bench-tiny", 256, 688, 4, 4, 4, tie_word_embeddings=True),
    "1b": _llama("a Llama of 1B (that of Llama 3.2)", "bench-1b", 2048, 8192, 16, 32, 8, tie_word_embeddings=True),
    "8b": _llama("a Llama of 8B (that of Llama 3)", "bench-8b", 4096, 14336, 32, 32, 8, tie_word_embeddings=False),
    "mini": _bert("a BERT of MiniLM's size", "bench-mini", 384, 6),
    "bert": _bert("a BERT of base size (110M)", "bench-bert", 768, 12),
}


def lay_out(model: Model, tokenizers: Path, cache: Path) -> None:
    """Puts a model into the hub cache `cache`. tokenizers: a folder that `collect` has filled."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        shutil.copytree(tokenizers / ("llama" if model.generates else "bert"), place, dirs_exist_ok=True)
        body = {**(_LLAMA if model.generates else _BERT), **model.config}
        (place / "config.json").write_text(json.dumps(body))
        if not model.generates:
            pooling = place / "1_Pooling" / "config.json"
            found = json.loads(pooling.read_text())
            pooling.write_text(json.dumps({**found, "word_embedding_dimension": model.config["hidden_size"]}))
        hub.lay_out(place, cache, model.repository, REVISION)


def collect(chat: Path, embedding: Path, target: Path) -> None:
    """Fills the folder `target` with two tokenizers. chat, embedding: folders of models that have them.

    The result is a few MiB, and travels to a machine that has neither model."""
    llama, bert = target / "llama", target / "bert"
    llama.mkdir(parents=True, exist_ok=True)
    body = json.loads((chat / "tokenizer.json").read_text())
    vocabulary = body["model"]["vocab"]
    known = len(vocabulary)
    vocabulary |= {f"unused{number}": number for number in range(known, LLAMA_VOCABULARY)}
    (llama / "tokenizer.json").write_text(json.dumps(body, ensure_ascii=False))
    # Not the class that the newest transformers writes: older ones must read it too.
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (llama / "tokenizer_config.json").write_text(json.dumps({**named, "pad_token": "<|im_end|>"}))
    for path in embedding.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".txt"):
            copy = bert / path.relative_to(embedding)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


class Words:
    """Texts of a given number of tokens, made of words that are one token each. tokenizer: a file ``tokenizer.json``."""

    def __init__(self, tokenizer: Path) -> None:
        model = json.loads(tokenizer.read_text())["model"]
        space = "\u0120" if model["type"] == "BPE" else ""
        found = (word.removeprefix(space) for word in model["vocab"] if word.startswith(space))
        self._words = sorted({word for word in found if word.isascii() and word.isalpha() and word.islower() and len(word) > 2})
        self._words = [word for word in self._words if not word.startswith("unused")]
        self._draw = random.Random(SEED)

    def text(self, tokens: int) -> str:
        return " ".join(self._draw.choices(self._words, k=tokens))


if __name__ == "__main__":
    chat = local_models.ensure(local_models.SMOLLM2).folder
    collect(chat, hub.snapshot(hub.ensure(), hub.REPOSITORY, hub.REVISION), Path(sys.argv[1]))
