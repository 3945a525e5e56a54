"""``python -m local.models.tiny_llama FOLDER``: a Llama of random weights that speaks the whole protocol and means nothing.

Greedy decoding repeats exactly: the weights are spread wide, so that the best token is best by far more than rounding.
"""

from __future__ import annotations

import sys
from typing import Final

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from local.models import tokenizer

SPREAD: Final = 0.08


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=tokenizer.VOCABULARY,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=tokenizer.CONTEXT_TOKENS,
        initializer_range=SPREAD,
        # Tied ones would repeat the last token for ever.
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=2,
    )


def main(folder: str) -> None:
    torch.manual_seed(20261120)
    model = LlamaForCausalLM(config())
    # Without sampling settings of its own: what a job does not set is then vLLM's default, not this model's.
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(folder)
    tokenizer.make().save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
