"""The tokenizer of the generating models: byte-level BPE, so that any text at all survives the way there and back."""

from __future__ import annotations

from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from local.models.corpus import prose

VOCABULARY: Final = 2048
CONTEXT_TOKENS: Final = 2048
START, TURN, END, IMAGE = "<|start|>", "<|turn|>", "<|end|>", "<image>"
IMAGE_ID: Final = 3

# Content is a text, or a list of parts as in an image request. An image has no place in the text: BLIP-2 puts it before.
CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{{ '<|turn|>' + message['role'] + '\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{{ part['text'] if part['type'] == 'text' }}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<|end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|turn|>assistant\n' }}{%- endif -%}"
)


def make() -> Any:
    """A transformers tokenizer with a chat template; ids 0 to 3 are the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[START, TURN, END, IMAGE],
        # All 256 bytes are tokens, whether the training text has them or not.
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(prose(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
        extra_special_tokens={"image_token": IMAGE},
    )
