"""``python -m local.models.tiny_thinker FOLDER``: the tiny Llama as a model that reasons before it answers.

It has the tokens that vLLM's reasoning parser ``deepseek_r1`` looks for. The one that ends the reasoning is likelier than
others, so that with a few tokens to spend some answers come to an end of it and some do not.
"""

from __future__ import annotations

import sys
from typing import Final

import torch
from transformers import GenerationConfig, LlamaForCausalLM

from local.models import tiny_llama, tokenizer

THINK: Final = ("<think>", "</think>")
LIKELIER: Final = 1.6
"""How much further than of another token the weights of the reasoning's end are spread."""


def main(folder: str) -> None:
    torch.manual_seed(20261127)
    speaker = tokenizer.make()
    speaker.add_tokens(list(THINK))
    config = tiny_llama.config()
    config.vocab_size = len(speaker)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[speaker.convert_tokens_to_ids(THINK[1])] *= LIKELIER
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(folder)
    speaker.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
