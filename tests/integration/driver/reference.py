"""What transformers itself says, for tests to hold vLLM's answers against. Runs in the server environment.

``reference.py entries``: docstrings that the local models were not trained on, as [subject, name, text].
``reference.py scores FOLDER``: the model's probabilities for texts or pairs of texts, read as JSON from standard input, and the
names of its classes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from local.models.corpus import entries


def held_out() -> list[list[str]]:
    return [[entry.subject, entry.name, entry.text] for entry in entries() if entry.held_out]


def scores(folder: str, inputs: list[Any]) -> dict[str, Any]:
    """One at a time, so that no padding takes part."""
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    words = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for item in inputs:
            logits = model(**words(*([item] if isinstance(item, str) else item), return_tensors="pt")).logits[0]
            found.append((logits.softmax(-1) if len(logits) > 1 else logits.sigmoid()).tolist())
    return {"labels": [model.config.id2label[n] for n in range(model.config.num_labels)], "scores": found}


if __name__ == "__main__":
    print(json.dumps(held_out() if sys.argv[1] == "entries" else scores(sys.argv[2], json.load(sys.stdin))))
