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


def test_the_size_of_the_files_stands_for_a_config() -> None:
    model = model_of_size(16e9)

    assert (model.parameters, model.weights_bytes, model.cached) == (8e9, 16e9, None)
