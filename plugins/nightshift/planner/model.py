"""How large a model is and what a token costs it, from the ``config.json`` that Hugging Face keeps beside its weights.

The names are those of `transformers.PretrainedConfig` and its subclasses. Counted are the matrices that are multiplied; norms,
biases and rotary tables are left out (less than 1 % of any model here). A layer without attention (a state space) counts
as one that has it, but caches nothing. Sliding windows are left out: such a layer counts as if it saw the whole text, so long
texts are estimated slower than they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

BYTES: Final[Mapping[str, float]] = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
BITS_OF: Final[Mapping[str, float]] = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4.25, "awq": 4, "gptq": 4, "bitsandbytes": 4}
"""Bits of a weight by ``quant_method``, where the config has nothing closer. mxfp4: 4 and a scale of 8 for each 32."""
_BITS_OF_MODELOPT: Final[Mapping[str, float]] = {"FP8": 8, "NVFP4": 4.5}
"""By ``quant_algo``. NVFP4: 4 and a scale of 8 for each 16."""
_WITHOUT_CACHE: Final = frozenset(["linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp", "linear", "ssm"])
"""Kinds of layers, as ``layer_types`` names them, that keep nothing of each token."""
_LARGEST: Final = 10**9
"""No size in a config is larger; one that is was never meant."""
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EVERY: Final = (
    "decoder_sparse_step",
    "moe_layer_freq",
    "expert_layer_period",
    "interleave_moe_layer_step",
    "moe_layer_interval",
)
_LIKE_BERT: Final = frozenset(
    [
        "bert",
        "roberta",
        "xlm-roberta",
        "camembert",
        "distilbert",
        "electra",
        "mpnet",
        "deberta",
        "deberta-v2",
        "albert",
    ]
)
_UNGATED: Final = _LIKE_BERT | frozenset(
    [
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "gpt_bigcode",
        "opt",
        "bloom",
        "falcon",
        "phi",
        "starcoder2",
        "mpt",
        "nemotron",
        "nemotron_h",
        "arcee",
        "apertus",
        "persimmon",
        "codegen",
        "biogpt",
        "vit",
    ]
)
"""Kinds (``model_type``) whose feed-forward layer has two matrices; all others have a third, the gate."""
_ENCODERS: Final = _LIKE_BERT | frozenset(
    [
        "modernbert",
        "nomic_bert",
        "new",
        "gte",
    ]
)


class UnknownModel(ValueError):
    """Its config lacks what is needed; the message names what is missing."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as the roofline sees it. All but layers are counts of numbers, not bytes.

    body: weights of the layers that every token is multiplied with. embedding: of the table of tokens, which is only looked up.
    head: of the last layer over the vocabulary, 0 for an encoder; it is counted in `weights_bytes` unless it is the table of
    tokens (tied). experts, chosen, expert: how many experts a layer of a mixture has, how many a token goes through, and the
    weights of one of them, over all layers; 0, 0 and 0 without. cached: of keys and values, for each token of a text; None: not
    known. width: heads x their size, over all layers. heads: of attention in a layer; None: not known. groups: heads that are
    cached; 1 if a latent is cached instead. encoder: no text is generated. weight_bytes: of one weight of body and experts.
    number_bytes: of any other number. source: where this is from, in words.
    """

    body: float
    embedding: float = 0
    head: float = 0
    tied: bool = True
    experts: int = 0
    chosen: int = 0
    expert: float = 0
    cached: float | None = None
    width: float = 0
    heads: int | None = None
    groups: int = 1
    encoder: bool = False
    weight_bytes: float
    number_bytes: float
    cache_bytes: float
    length_max: int | None = None
    source: str

    @property
    def parameters(self) -> float:
        return self.body + self.experts * self.expert + self.embedding + (0 if self.tied else self.head)

    @property
    def active(self) -> float:
        """Weights that one token is multiplied with, the head left out."""
        return self.body + self.chosen * self.expert

    @property
    def weights_bytes(self) -> float:
        """In an accelerator's memory."""
        rest = self.embedding + (0 if self.tied else self.head)
        return (self.body + self.experts * self.expert) * self.weight_bytes + rest * self.number_bytes

    def read_bytes(self, tokens: float) -> float:
        """Of weights that are read for a step over this many tokens.

        Of a mixture, the experts that at least one of the tokens is sent to: E (1 - (1 - k/E)^tokens), if each is as likely.
        """
        touched = self.experts * (1 - (1 - self.chosen / self.experts) ** tokens) if self.experts else 0.0
        return (self.body + touched * self.expert) * self.weight_bytes + self.head * self.number_bytes


def model_of(config: object, dtype: str = "auto", kv_cache_dtype: str = "auto", quantization: str | None = None) -> Model:
    """The model of a ``config.json``. dtype, kv_cache_dtype, quantization: as vLLM takes them.

    With "auto", vLLM computes models of float32 in 16 bits (its page "Engine arguments", ``--dtype``). A model of several parts
    (text and images) is counted by its text part. Raises UnknownModel.
    """
    if not isinstance(config, Mapping):
        raise UnknownModel("its config.json is not a JSON object")
    text = {**config, **_part(config)}
    if text.get("is_encoder_decoder") is True:
        raise UnknownModel("it has an encoder and a decoder, and only models with one of them are counted")
    layers = _int(text, "num_hidden_layers", "n_layer", "n_layers")
    hidden = _int(text, "hidden_size", "n_embd", "d_model", "dim")
    heads = _int(text, "num_attention_heads", "n_head", "n_heads")
    vocabulary = _int(text, "vocab_size")
    kind = str(text.get("model_type", ""))
    encoder = kind in _ENCODERS
    attention, cached, width, groups = _attention(text, hidden, heads)
    dense, sparse = _feed_forward_layers(text, layers)
    matrices = 2 if kind in _UNGATED else 3
    inner = _inner(text) or 4 * hidden
    experts, chosen, expert, shared = _experts(text, hidden, inner, matrices)
    number_bytes = BYTES.get(str(dtype), 2.0)
    return Model(
        body=layers * attention + dense * matrices * hidden * inner + sparse * (shared + hidden * experts),
        embedding=vocabulary * hidden + _tables_of_layers(text, layers),
        head=0 if encoder else vocabulary * hidden,
        tied=encoder or bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", _ties(kind)))),
        experts=experts,
        chosen=chosen,
        expert=sparse * expert,
        cached=0 if encoder else _caching_layers(text, layers) * cached,
        width=layers * width,
        heads=heads,
        groups=groups,
        encoder=encoder,
        weight_bytes=_weight_bytes(text, quantization, number_bytes),
        number_bytes=number_bytes,
        cache_bytes=BYTES.get(str(kv_cache_dtype), number_bytes),
        length_max=_optional(text, "max_position_embeddings", "n_positions", "n_ctx"),
        source="config.json",
    )


def model_of_size(size: float, dtype: str = "auto") -> Model:
    """A model of which only the bytes of its weights are known: dense, one type of number, every weight read for every
    token."""
    number_bytes = BYTES.get(dtype, 2.0)
    return Model(
        body=size / number_bytes,
        weight_bytes=number_bytes,
        number_bytes=number_bytes,
        cache_bytes=number_bytes,
        source="the size of its files",
    )


def _part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(name), Mapping):
            return dict(config[name])
    return {}


def _tables_of_layers(text: Mapping[str, Any], layers: int) -> int:
    """Numbers in gemma 3n's tables of tokens, one for each layer."""
    size = _optional(text, "hidden_size_per_layer_input") or 0
    return layers * size * (_optional(text, "vocab_size_per_layer_input") or 0)


def _ties(kind: str) -> bool:
    """What a config that leaves ``tie_word_embeddings`` out means: gemma's default is true, and so is PretrainedConfig's of
    old."""
    return kind.startswith(("gemma", "gpt2", "gpt_bigcode", "opt", "bloom"))


def _attention(text: Mapping[str, Any], hidden: int, heads: int) -> tuple[float, float, float, int]:
    """Of one layer: weights; numbers cached for a token; heads x their size; groups of heads. DeepSeek's latent attention
    caches its latent."""
    if latent := _optional(text, "kv_lora_rank"):
        rope, plain = _int(text, "qk_rope_head_dim"), _int(text, "qk_nope_head_dim")
        value, query = _int(text, "v_head_dim"), heads * (rope + plain)
        low = _optional(text, "q_lora_rank")
        asked = hidden * low + low * query if low else hidden * query
        weights = asked + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden
        return weights, latent + rope, heads * (rope + plain + value) / 2, 1
    size = _optional(text, "head_dim") or hidden // heads
    if not size:
        raise UnknownModel(f"its config.json has {heads:,} attention heads for a hidden size of {hidden:,}")
    groups = 1 if text.get("multi_query") is True else _optional(text, "num_key_value_heads", "num_kv_heads") or heads
    return hidden * size * (2 * heads + 2 * groups), 2 * groups * size, heads * size, groups


def _caching_layers(text: Mapping[str, Any], layers: int) -> int:
    """How many layers have keys and values: of a hybrid, those with attention."""
    for name in ("layer_types", "layers_block_type"):
        if isinstance(kinds := text.get(name), list) and kinds:
            return sum(str(kind) not in _WITHOUT_CACHE for kind in kinds)
    if isinstance(pattern := text.get("hybrid_override_pattern"), str) and pattern:
        return pattern.count("*")
    if isinstance(indices := text.get("attn_layer_indices"), list):
        return len(indices)
    every = _optional(text, "attn_layer_period", "full_attention_interval")
    return layers // every if every else layers


def _inner(text: Mapping[str, Any]) -> int | None:
    """The width of a dense feed-forward layer: of the widest, where a config lists them."""
    if isinstance(each := text.get("intermediate_size"), list):
        return max((found for size in each if (found := _optional({"size": size}, "size"))), default=None)
    return _optional(text, "intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim")


def _feed_forward_layers(text: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """How many layers are dense, and how many have experts."""
    if not _optional(text, *_EXPERTS):
        return layers, 0
    if isinstance(each := text.get("moe_layer_freq"), list):
        sparse = sum(layer == 1 for layer in each)
        return max(0, layers - sparse), sparse
    only = text.get("mlp_only_layers")
    dense = {layer for layer in only if isinstance(layer, int)} if isinstance(only, list) else set()
    dense |= set(range(min(layers, _optional(text, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index") or 0)))
    every = _optional(text, *_EVERY) or 1
    sparse = sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % every == 0)
    return layers - sparse, sparse


def _experts(text: Mapping[str, Any], hidden: int, inner: int, matrices: int) -> tuple[int, int, float, float]:
    """Of a layer with experts: how many, how many for a token, weights of one, weights of those that all tokens share."""
    count = _optional(text, *_EXPERTS) or 0
    if not count:
        if name := _experts_by_another_name(text):
            raise UnknownModel(f"it seems to be a mixture of experts, and {name} is not read")
        return 0, 0, 0, 0
    chosen = _int(
        text,
        "num_experts_per_tok",
        "experts_per_token",
        "moe_topk",
        "num_experts_per_token",
        "moe_k",
        "moe_top_k",
        "top_k_experts",
    )
    if chosen > count:
        raise UnknownModel(f"its config.json sends a token to {chosen:,} of {count:,} experts")
    own = _optional(text, "moe_intermediate_size", "expert_ffn_hidden_size") or inner
    shared = _optional(text, "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    if shared is None:
        shared = own * (
            _optional(text, "n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts") or 0
        )
    return count, chosen, matrices * hidden * own, matrices * hidden * shared


def _experts_by_another_name(text: Mapping[str, Any]) -> str | None:
    """The key that counts experts in a way that is not read. To take them for none would make a small model of a large one."""
    for name, value in text.items():
        counts = re.fullmatch(r"(.*_)?(num|n)_(\w+_)?experts", name) and "shared" not in name
        if counts and (isinstance(value, list) or (isinstance(value, int | float) and value > 1)):
            return name
        if isinstance(value, Mapping) and name.endswith(("ffn_config", "moe_config")) and _experts_by_another_name(value):
            return name
    return None


def _weight_bytes(text: Mapping[str, Any], flag: str | None, number_bytes: float) -> float:
    """flag: ``--quantization``, which vLLM does while it loads, where the files are not quantized already."""
    found = text.get("quantization_config") or text.get("compression_config")
    if not isinstance(found, Mapping):
        return _by_method(flag) if flag else number_bytes
    for name in ("bits", "w_bit"):
        if found.get(name) is not None:
            return _bits(found[name]) / 8
    groups = found.get("config_groups")
    if isinstance(groups, Mapping) and groups:
        weights = [each.get("weights") if isinstance(each, Mapping) else each for each in groups.values()]
        said = [each.get("num_bits") if isinstance(each, Mapping) else each for each in weights]
        return max(_bits(bits) if each else 8 * number_bytes for each, bits in zip(weights, said, strict=True)) / 8
    if found.get("load_in_8bit") is True:
        return 1.0
    method = str(found.get("quant_method", ""))
    if method.startswith("modelopt") and (algorithm := str(found.get("quant_algo", ""))) in _BITS_OF_MODELOPT:
        return _BITS_OF_MODELOPT[algorithm] / 8
    return _by_method(method)


def _by_method(method: str) -> float:
    if method not in BITS_OF:
        raise UnknownModel(f"its quantization {method!r} is not one whose size is known ({', '.join(BITS_OF)})")
    return BITS_OF[method] / 8


def _bits(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 32:
        raise UnknownModel(f"its config.json says that a quantized weight has {value!r} bits")
    return float(value)


def _int(text: Mapping[str, Any], *names: str) -> int:
    found = _optional(text, *names)
    if found is None:
        raise UnknownModel(f"its config.json has no {names[0]}")
    return found


def _optional(text: Mapping[str, Any], *names: str) -> int | None:
    return next((text[name] for name in names if type(text.get(name)) is int and 0 < text[name] <= _LARGEST), None)
