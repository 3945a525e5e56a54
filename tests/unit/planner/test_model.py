"""The size of a model from its config.json, beside what its makers say."""

from __future__ import annotations

from typing import Any

import pytest

from nightshift.planner.model import UnknownModel, model_of, model_of_size
from tests.unit import model_configs as configs

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (configs.MINILM, 0.0227),
        (configs.BGE_M3, 0.568),
        (configs.QWEN25_05B, 0.494),
        (configs.QWEN25_7B, 7.616),
        (configs.QWEN3_8B, 8.191),
        (configs.QWEN3_30B_A3B, 30.53),
        (configs.LLAMA3_8B, 8.030),
        (configs.LLAMA3_70B, 70.55),
        (configs.MIXTRAL, 46.70),
        (configs.MISTRAL_7B, 7.248),
        (configs.GEMMA2_9B, 9.242),
        (configs.DEEPSEEK_V3, 671),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else None,
)
def test_parameters(config: dict[str, Any], billions: float) -> None:
    """As the model cards and the indexes of the safetensors say, within 2 %: norms, biases and tables of positions are left
    out."""
    assert model_of(config).parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("config", "billions"), [(configs.MIXTRAL, 12.9), (configs.QWEN3_30B_A3B, 3.3), (configs.DEEPSEEK_V3, 37)]
)
def test_active_parameters_of_a_mixture(config: dict[str, Any], billions: float) -> None:
    model = model_of(config)

    assert (model.active + model.head + model.embedding) / 1e9 == pytest.approx(billions, rel=0.05)


@pytest.mark.parametrize(
    ("config", "kib"),
    [
        (configs.LLAMA3_8B, 128),
        (configs.LLAMA3_70B, 320),
        (configs.QWEN25_7B, 56),
        (configs.QWEN3_30B_A3B, 96),
        (configs.DEEPSEEK_V3, 61 * 576 * 2 / 1024),
        (configs.MINILM, 0),
    ],
)
def test_keys_and_values_of_a_token(config: dict[str, Any], kib: float) -> None:
    """2 x layers x groups x their size x 2 bytes; DeepSeek's latent; nothing of an encoder."""
    model = model_of(config)

    assert (model.cached or 0) * model.cache_bytes / 1024 == kib


@pytest.mark.parametrize(
    ("config", "gigabytes"),
    [(configs.LLAMA3_8B, 16.06), (configs.LLAMA31_8B_AWQ, 5.73), (configs.LLAMA31_70B_FP8, 72.6), (configs.DEEPSEEK_V3, 671)],
)
def test_bytes_of_weights(config: dict[str, Any], gigabytes: float) -> None:
    """As large as the files are, within 5 %: scales of the quantization and a second head (DeepSeek's) are left out."""
    assert model_of(config).weights_bytes / 1e9 == pytest.approx(gigabytes, rel=0.05)


def test_the_type_of_numbers_counts() -> None:
    assert model_of(configs.LLAMA3_8B, "float32").weights_bytes == 2 * model_of(configs.LLAMA3_8B).weights_bytes
    assert model_of(configs.LLAMA3_8B, kv_cache_dtype="fp8").cache_bytes == 1


def test_a_step_over_few_tokens_reads_few_experts() -> None:
    """Two of eight for one token; all for many. A dense model is read as a whole."""
    model, dense = model_of(configs.MIXTRAL), model_of(configs.LLAMA3_8B)
    all_experts = model.experts * model.expert * model.weight_bytes

    assert model.read_bytes(1000) - model.read_bytes(1) == pytest.approx(all_experts * 6 / 8)
    assert dense.read_bytes(1) == dense.read_bytes(1000) == pytest.approx(dense.weights_bytes - 2 * dense.embedding)


def test_what_a_config_lacks_is_named() -> None:
    with pytest.raises(UnknownModel, match="num_attention_heads"):
        model_of(configs.GEMMA3_4B)
    with pytest.raises(UnknownModel, match="no vocab_size"):
        model_of({**configs.LLAMA3_8B, "vocab_size": "many"})
    with pytest.raises(UnknownModel, match="quantization 'rot13'"):
        model_of({**configs.LLAMA3_8B, "quantization_config": {"quant_method": "rot13"}})


@pytest.mark.parametrize("config", [None, [], "config", 7, {}])
def test_what_is_no_config_at_all(config: object) -> None:
    with pytest.raises(UnknownModel):
        model_of(config)


@pytest.mark.parametrize(
    "change",
    [
        {"quantization_config": {"bits": "four"}},
        {"quantization_config": {"bits": [4]}},
        {"quantization_config": {"bits": True}},
        {"quantization_config": {"config_groups": {"group_0": "int4"}}},
        {"quantization_config": {"config_groups": {"group_0": {"weights": "int4"}}}},
        {"quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": None}}}}},
        {"num_hidden_layers": "32"},
        {"num_hidden_layers": 10**400},
        {"hidden_size": None},
        {"num_attention_heads": 9000},
        {"num_local_experts": 8, "num_experts_per_tok": 9},
        {"is_encoder_decoder": True},
    ],
)
def test_a_value_that_nobody_can_count_with_is_not_a_crash(change: dict[str, Any]) -> None:
    """The task plan would fail for good, and the night with it, although the size of the files is known."""
    with pytest.raises(UnknownModel):
        model_of({**configs.LLAMA3_8B, **change})


@pytest.mark.parametrize("only", [3, "none", [[1]], None])
def test_layers_that_are_listed_in_an_odd_way(only: object) -> None:
    assert model_of({**configs.MIXTRAL, "mlp_only_layers": only}).experts == 8


@pytest.mark.parametrize(
    "change",
    [
        {"moe_num_experts": [64, 64]},
        {"num_experts": [16] * 32},
        {"moe_num_primary_experts": 32},
        {"ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}},
    ],
)
def test_a_mixture_that_is_written_in_another_way_is_not_taken_for_a_small_model(change: dict[str, Any]) -> None:
    """ERNIE's with images, Hunyuan's, SmallThinker's, DBRX's."""
    with pytest.raises(UnknownModel, match="it seems to be a mixture of experts"):
        model_of({**configs.LLAMA3_8B, **change})


def test_a_mixture_of_ernie() -> None:
    """21.83 billion numbers, as transformers counts its own class."""
    assert model_of(configs.ERNIE_21B_A3B).parameters / 1e9 == pytest.approx(21.83, rel=0.01)


def test_only_layers_with_attention_cache() -> None:
    """A hybrid with 131,072 tokens fits where forty layers of keys and values would not."""
    kinds = ["mamba"] * 30 + ["attention", "sliding_attention"]
    every_fourth = {**configs.LLAMA3_8B, "full_attention_interval": 4}

    whole = model_of(configs.LLAMA3_8B).cached or 0
    assert model_of({**configs.LLAMA3_8B, "layer_types": kinds}).cached == whole / 16
    assert model_of({**configs.LLAMA3_8B, "hybrid_override_pattern": "M-M*" * 8}).cached == whole / 4
    assert model_of(every_fourth).cached == whole / 4
    assert model_of({**configs.LLAMA3_8B, "layer_types": None}).cached == whole


def test_weights_that_vllm_quantizes_while_it_loads() -> None:
    plain, quantized = model_of(configs.LLAMA3_70B), model_of(configs.LLAMA3_70B, quantization="fp8")

    assert quantized.weights_bytes < 0.6 * plain.weights_bytes
    assert model_of(configs.LLAMA31_8B_AWQ, quantization="awq_marlin") == model_of(configs.LLAMA31_8B_AWQ)
    with pytest.raises(UnknownModel, match="quantization 'rot13'"):
        model_of(configs.LLAMA3_70B, quantization="rot13")


def test_a_quantization_that_a_part_of_the_config_names() -> None:
    said = {"quant_method": "modelopt", "quant_algo": "NVFP4"}

    assert model_of({**configs.LLAMA3_8B, "quantization_config": said}).weight_bytes == 4.5 / 8
    assert model_of({"text_config": configs.LLAMA31_8B_AWQ}).weight_bytes == 0.5


def test_the_size_of_the_files_stands_for_a_config() -> None:
    model = model_of_size(16e9)

    assert (model.parameters, model.weights_bytes, model.cached) == (8e9, 16e9, None)
