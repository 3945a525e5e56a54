"""Runs in the server's environment: reads texts from standard input, as one JSON list; writes their vectors to standard output.

Uses the engine's weights in process: starting an engine for three questions would not pay.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def embed(texts: list[str], model: str, revision: str) -> list[list[float]]:
    """Mean of the token vectors, at length 1: how this model is meant to be pooled (its ``1_Pooling`` and ``2_Normalize``)."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model, revision=revision)
    network: Any = AutoModel.from_pretrained(model, revision=revision)
    batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        tokens = network(**batch).last_hidden_state
    weights = batch["attention_mask"].unsqueeze(-1).to(tokens.dtype)
    mean = (tokens * weights).sum(1) / weights.sum(1)
    vectors: list[list[float]] = torch.nn.functional.normalize(mean, dim=1).tolist()
    return vectors


if __name__ == "__main__":
    json.dump(embed(json.load(sys.stdin), sys.argv[1], sys.argv[2]), sys.stdout)
