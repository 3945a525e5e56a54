"""``python -m local.models.tiny_blip FOLDER``: a vision-language model of random weights (BLIP-2 before the tiny Llama).

Its words mean nothing, but they depend on the image, and an image travels the whole way: fetched, decoded, cut into patches.
BLIP-2 because vLLM's code for most others (Llava, Qwen-VL, Gemma 3, Pixtral, InternVL) imports torchvision, which the server
environment does without.
"""

from __future__ import annotations

import sys
from typing import Final

import torch
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    Blip2QFormerConfig,
    Blip2VisionConfig,
    BlipImageProcessorPil,
    GenerationConfig,
)

from local.models import tiny_llama, tokenizer

IMAGE_SIZE: Final = 56
QUERY_TOKENS: Final = 8
# Wide enough for two images to differ by the time the text model sees them.
SPREAD: Final = 0.2


def config() -> Blip2Config:
    return Blip2Config(
        vision_config=Blip2VisionConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=IMAGE_SIZE,
            patch_size=14,
            initializer_range=SPREAD,
        ).to_dict(),
        qformer_config=Blip2QFormerConfig(
            vocab_size=tokenizer.VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            encoder_hidden_size=64,
            initializer_range=SPREAD,
        ).to_dict(),
        text_config=tiny_llama.config().to_dict(),
        num_query_tokens=QUERY_TOKENS,
        image_token_index=tokenizer.IMAGE_ID,
        tie_word_embeddings=False,
    )


def main(folder: str) -> None:
    torch.manual_seed(20261120)
    model = Blip2ForConditionalGeneration(config())
    # transformers starts these from zero: every query would then see the same in every image.
    torch.nn.init.normal_(model.query_tokens, std=SPREAD)
    torch.nn.init.normal_(model.language_projection.weight, std=SPREAD)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(folder)
    images = BlipImageProcessorPil(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})
    Blip2Processor(images, tokenizer.make()).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
