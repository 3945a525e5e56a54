"""``python -m benchmarks.models NAME FOLDER``, in the server environment: models of realistic size, with random weights.

The repository's own models compute a row faster than a server can read it; with these, the engine is the bottleneck.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from local import hub
from local.environments import ROOT, python_of

BERT: Final = "bench-bert-base"
LLAMA: Final = "bench-llama"
ORGANISATION: Final = "nightshift-local"
REVISION: Final = "r1"


def ensure(name: str) -> str:
    """Makes the model unless it exists; returns its repository. Its revision is `REVISION`."""
    repository = f"{ORGANISATION}/{name}"
    if not hub.holds(hub.ensure(), repository, REVISION):
        with tempfile.TemporaryDirectory() as folder:
            command = [str(python_of("server")), "-m", "benchmarks.models", name, folder]
            subprocess.run(command, cwd=ROOT, check=True)
            hub.lay_out(Path(folder), hub.hub_dir(), repository, REVISION)
    return repository


def make_bert(folder: Path) -> None:
    """MiniLM's tokenizer and pooling with a body of BERT base's size: 110 million weights."""
    import torch
    from transformers import BertConfig, BertModel

    source = hub.snapshot(hub.ensure(), hub.REPOSITORY, hub.REVISION)
    for path in source.rglob("*"):
        if path.is_file() and path.suffix not in (".safetensors", ".bin", ".onnx"):
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    torch.manual_seed(20261121)
    config = BertConfig.from_pretrained(source, hidden_size=768, num_hidden_layers=12, num_attention_heads=12)
    config.intermediate_size = 3072
    BertModel(config).save_pretrained(folder)
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), "word_embedding_dimension": 768}))


def make_llama(folder: Path) -> None:
    """The tiny Llama, deeper and wider: 100 million weights."""
    import torch
    from transformers import GenerationConfig, LlamaForCausalLM

    from local.models import tiny_llama, tokenizer

    torch.manual_seed(20261121)
    config = tiny_llama.config()
    config.update({"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12})
    config.update({"num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64, "initializer_range": 0.05})
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(folder)
    tokenizer.make().save_pretrained(folder)


if __name__ == "__main__":
    {BERT: make_bert, LLAMA: make_llama}[sys.argv[1]](Path(sys.argv[2]))
