"""The roofline of one worker: beside published figures, and what it depends on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nightshift.planner.model import model_of, model_of_size
from nightshift.planner.roofline import ROW_S, CannotStart, Estimate, Tokens, api_servers_for, estimate
from nightshift.profiles import PROFILES, Span, WorkerShape, fit
from nightshift.profiles.hardware import GPUS, Gpu, Peak
from tests.unit import model_configs as configs

pytestmark = pytest.mark.unit

FACTOR = 2.0
"""An estimate is within this factor of each published figure."""


def a_worker(profile: str, **span: Any) -> WorkerShape:
    return fit(PROFILES[profile], Span(**span))


def other_gpu(memory: int, peak: Peak) -> WorkerShape:
    """A GPU that no profile has, in the place of an L4."""
    gpu = Gpu("other", memory, GPUS["l4"].machines, peak)
    return replace(a_worker("gpu-l4"), profile=replace(PROFILES["gpu-l4"], hardware=gpu))


A40 = other_gpu(48, Peak(bf16=149.7, fp32=37.4, bandwidth=696))
RTX_4090 = other_gpu(24, Peak(bf16=165, fp32=82.6, fp8=330, bandwidth=1008))


@pytest.mark.parametrize(
    ("config", "worker", "seqs", "tokens", "output_per_second"),
    [
        # vLLM 0.23, Llama 3.1 8B, 1,024 + 128 tokens: https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on
        pytest.param(configs.LLAMA3_8B, a_worker("gpu-a100"), 1, (1024, 128), 75, id="A100-1"),
        pytest.param(configs.LLAMA3_8B, a_worker("gpu-a100"), 8, (1024, 128), 6.6 * 75, id="A100-8"),
        # vLLM, Llama 3.1 8B, 50 requests at once, 100 + 443 tokens: https://databasemart.com/blog/vllm-gpu-benchmark-a40
        pytest.param(configs.LLAMA3_8B, A40, 50, (100, 443), 1016.6, id="A40-50"),
        # vLLM, Mistral 7B, 256 + 100 tokens (1,190 tokens/s at 11.87 requests/s): https://mushfiqrahman.dev/?p=1668
        pytest.param(configs.MISTRAL_7B, RTX_4090, 16, (256, 100), 644, id="4090-16"),
        pytest.param(configs.MISTRAL_7B, RTX_4090, 48, (256, 100), 1190, id="4090-48"),
    ],
)
def test_published_figures(
    config: dict[str, Any], worker: WorkerShape, seqs: int, tokens: tuple[int, int], output_per_second: float
) -> None:
    found = estimate(model_of(config), worker, Tokens(*tokens, ""), seqs=seqs, length=4096)

    assert output_per_second / FACTOR <= found.output_tokens <= output_per_second * FACTOR


def llama(seqs: int = 256, tokens: tuple[float, float] = (500, 200), profile: str = "gpu-l4", **options: Any) -> Estimate:
    length = options.pop("length", 4096)
    flags = options.pop("flags", {})
    return estimate(
        model_of(configs.LLAMA3_8B), a_worker(profile, **options), Tokens(*tokens, ""), seqs=seqs, length=length, flags=flags
    )


def test_a_chat_on_an_l4_is_two_rows_a_second() -> None:
    """Not 400, as was believed of every model."""
    assert 1 < llama().rows_per_second < 3


def test_as_many_texts_as_the_memory_holds() -> None:
    """24 GB x 0.85 - 16.06 GB is room for 33,000 tokens of 128 KiB: 47 texts of 700."""
    assert llama().seats == 47
    assert llama(seqs=8).seats == 8
    assert llama(profile="gpu-h100").seats == 256
    assert llama(flags={"gpu-memory-utilization": 0.8}).seats < 47


def test_several_engines_have_a_part_of_the_memory_each_and_are_no_faster_together() -> None:
    """80 GB x (0.45 - 0.05) - 16.06 GB is room for 173 texts of 700 tokens; a third of it holds less than the weights."""
    model, tokens = model_of(configs.LLAMA3_8B), Tokens(500, 200, "")
    one, two = (estimate(model, a_worker("gpu-h100", engines=n), tokens, seqs=512, length=1024) for n in (1, 2))

    assert (two.seats, one.seats) == (173, 512)
    assert two.rows_per_second < one.rows_per_second
    with pytest.raises(CannotStart, match=r"gpu-l4 has room for 9\.6 GB for each of 2 engines \(compute\.engines\)"):
        estimate(model, a_worker("gpu-l4", engines=2), tokens, seqs=8, length=1024)
    stated = {"gpu-memory-utilization": 0.3}
    assert estimate(model, a_worker("gpu-h100", engines=2), tokens, seqs=512, length=1024, flags=stated).seats < 173
    small = estimate(replace(model, body=1e8), a_worker("cpu", engines=2), tokens, seqs=512, length=1024)
    assert small.seats == (1 << 30) // (131_072 * 700)


@pytest.mark.parametrize("seqs", [1, 8, 32])
def test_more_texts_at_once_are_more_rows(seqs: int) -> None:
    assert llama(seqs=seqs).rows_per_second < llama(seqs=2 * seqs).rows_per_second


def test_longer_rows_are_fewer_rows() -> None:
    assert llama(tokens=(1000, 200)).rows_per_second < llama().rows_per_second > llama(tokens=(500, 400)).rows_per_second


def test_no_text_is_longer_than_the_model_allows() -> None:
    assert llama(tokens=(10**6, 0), length=2048).rows_per_second == llama(tokens=(2048, 0), length=2048).rows_per_second


def test_more_accelerators_are_faster_but_not_as_often() -> None:
    one, two = llama(profile="gpu-h100").rows_per_second, llama(profile="gpu-h100", tensor_parallel=2).rows_per_second

    assert one < two < 2 * one


def test_quantized_weights_leave_room_and_are_read_sooner() -> None:
    plain, small = model_of(configs.LLAMA3_8B), model_of(configs.LLAMA31_8B_AWQ)
    options: dict[str, Any] = {"seqs": 256, "length": 4096}
    rates = [estimate(model, a_worker("gpu-l4"), Tokens(500, 200, ""), **options) for model in (plain, small)]

    assert rates[0].seats < rates[1].seats
    assert rates[0].rows_per_second < rates[1].rows_per_second


def test_a_small_encoder_is_bound_by_the_api_server() -> None:
    found = estimate(model_of(configs.MINILM), a_worker("gpu-h100"), Tokens(40, 0, ""), seqs=256, length=256)

    assert found.bound == "API server"
    assert found.rows_per_second == pytest.approx(1 / ROW_S)


@pytest.mark.parametrize(
    ("profile", "span", "tokens", "servers"),
    [
        ("gpu-l4", {}, 14, 4),
        ("gpu-h100", {}, 14, 4),
        ("gpu-h100", {"tensor_parallel": 8}, 14, 4),
        ("cpu", {}, 14, 1),
        ("tpu-v6e", {"topology": "1x1"}, 14, 1),
        ("gpu-h100", {"hosts": 2}, 14, 1),
    ],
)
def test_short_rows_get_as_many_api_servers_as_driver_and_cpus_allow(
    profile: str, span: dict[str, Any], tokens: int, servers: int
) -> None:
    model = replace(model_of(configs.MINILM), heads=0)
    found = estimate(model, a_worker(profile, **span), Tokens(tokens, 0, ""), seqs=256, length=256)

    assert found.api_servers == servers


def test_as_many_as_are_no_longer_the_bound() -> None:
    assert [api_servers_for(ms / 1000, a_worker("gpu-l4")) for ms in (0.6, 0.5, 0.4, 0.24, 0.01)] == [1, 1, 2, 3, 4]
    assert llama(profile="gpu-h100").api_servers == 1
    assert [api_servers_for(0.00001, a_worker("gpu-l4", engines=n)) for n in (1, 2, 3, 8)] == [4, 2, 2, 1]


def test_a_small_encoder_on_a_cpu() -> None:
    """370 rows of 16 tokens for each second of a core with AVX-512 were measured (docs/develop/benchmarks.md, P1); a vCPU is
    half of one."""
    found = estimate(model_of(configs.MINILM, "float32"), a_worker("cpu"), Tokens(16, 0, ""), seqs=64, length=256)

    assert 370 / 4 <= found.rows_per_second <= 370


def test_a_cpu_worker_has_six_gib_for_weights_and_two_for_the_cache() -> None:
    """Of the 8 GiB that its pod may use: an engine with more weights would be killed for its memory, in the night."""
    model = replace(model_of(configs.LLAMA3_8B), body=float(3 << 30), embedding=0.0, head=0.0)
    options: dict[str, Any] = {"seqs": 1000, "length": 4096}

    found = estimate(model, a_worker("cpu"), Tokens(500, 200, ""), **options)

    assert model.weights_bytes == 6 << 30
    assert found.seats == (2 << 30) // (131_072 * 700), "Llama 3 8B keeps 131,072 bytes for a token"
    with pytest.raises(CannotStart, match=r"and cpu has room for 6\.4 GB"):
        estimate(replace(model, body=model.body + 1), a_worker("cpu"), Tokens(500, 200, ""), **options)


@pytest.mark.parametrize("profile", ["cpu", "gpu-l4", "gpu-h100"])
def test_a_model_that_does_not_fit(profile: str) -> None:
    with pytest.raises(CannotStart, match=rf"its weights are 141.1 GB, and {profile} has room for"):
        estimate(model_of(configs.LLAMA3_70B), a_worker(profile), Tokens(500, 200, ""), seqs=8, length=4096)


def test_a_length_that_does_not_fit() -> None:
    """vLLM refuses to start then."""
    with pytest.raises(CannotStart, match=r"a text of 65,536 tokens \(max_model_len\) needs 8.6 GB"):
        llama(length=65536)


def test_of_a_model_whose_size_alone_is_known() -> None:
    by_size = estimate(model_of_size(16.06e9), a_worker("gpu-l4"), Tokens(500, 200, ""), seqs=47, length=4096)

    assert llama().rows_per_second / 2 < by_size.rows_per_second < llama().rows_per_second * 2


def test_heads_that_the_accelerators_cannot_share() -> None:
    """vLLM refuses to start: 28 heads cannot be divided by 8."""
    model = model_of(configs.QWEN25_7B)

    assert estimate(model, a_worker("gpu-h100", tensor_parallel=4), Tokens(500, 200, ""), seqs=8, length=4096).rows_per_second
    with pytest.raises(CannotStart, match="28 attention heads cannot be divided among 8 accelerators"):
        estimate(model, a_worker("gpu-h100", tensor_parallel=8), Tokens(500, 200, ""), seqs=8, length=4096)


def test_accelerators_that_outnumber_the_groups_of_heads_hold_copies() -> None:
    """DeepSeek's latent is on each of eight."""
    model = model_of(configs.DEEPSEEK_V3)
    shape, tokens = a_worker("gpu-h200-spot", tensor_parallel=8), Tokens(4000, 1000, "")
    found = estimate(model, shape, tokens, seqs=4096, length=8192)

    one_copy = estimate(replace(model, groups=8), shape, tokens, seqs=4096, length=8192)
    assert one_copy.seats // 8 == found.seats


@pytest.mark.parametrize("value", ["most of it", "nan", 0, 1.5, -1])
def test_a_share_of_the_memory_that_vllm_does_not_take(value: object) -> None:
    with pytest.raises(CannotStart, match="gpu-memory-utilization"):
        llama(flags={"gpu-memory-utilization": value})


def test_a_row_of_many_documents_is_many_texts() -> None:
    """Fifty pairs of 200 tokens are fifty times one, though each text is cut at 512."""
    model, shape = model_of(configs.BGE_M3), a_worker("gpu-l4")

    def of(tokens: Tokens) -> Estimate:
        return estimate(model, shape, tokens, seqs=64, length=512)

    one, fifty = of(Tokens(200, 0, "")), of(Tokens(10_000, 0, "", texts=50))
    assert fifty.rows_per_second == pytest.approx(one.rows_per_second / 50)
    assert fifty.input_tokens == pytest.approx(one.input_tokens)
    assert of(Tokens(10_000, 0, "", texts=None)).rows_per_second < one.rows_per_second / 10
