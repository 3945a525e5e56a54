"""``python -m local.models.docs_ranker FOLDER``: a cross-encoder for score and rerank, MiniLM fine-tuned on docstrings.

A pair is a function's name in words and a docstring's first paragraph: its own, or another one of the same subject. How often
the right paragraph beats the wrong one, over files never seen, is printed as one line of JSON; chance is a half.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any, Final

import torch
from transformers import AutoTokenizer, BertForSequenceClassification

from local import hub
from local.models.corpus import Entry, entries

# Lower layers stay as they are, which saves more than half of the time.
FROZEN_LAYERS: Final = 4
STEPS: Final = 50
PAIRS: Final = 16
TOKENS_MAX: Final = 48


def main(folder: str) -> None:
    torch.manual_seed(20261120)
    torch.set_num_threads(2)
    draw = random.Random(20261120)
    source = str(hub.packaged_model())
    words = AutoTokenizer.from_pretrained(source)
    model = BertForSequenceClassification.from_pretrained(source, num_labels=1)
    found = [entry for entry in entries() if len(entry.name.split()) > 1]
    train(model, words, [entry for entry in found if not entry.held_out], draw)
    right, pairs = judge(model, words, [entry for entry in found if entry.held_out], draw)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    print(json.dumps({"pairs": pairs, "right_above_wrong": round(right / pairs, 3), "chance": 0.5}))


def contrasts(found: list[Entry], draw: random.Random) -> list[tuple[str, str, str]]:
    """Name, its own paragraph, another one of the same subject; for each entry that has one."""
    subjects: dict[str, list[Entry]] = {}
    for entry in found:
        subjects.setdefault(entry.subject, []).append(entry)
    triples = [(entry, draw.choice(subjects[entry.subject])) for entry in found]
    return [(entry.name, entry.text, other.text) for entry, other in triples if other.name != entry.name]


def scores(model: Any, words: Any, names: list[str], texts: list[str]) -> torch.Tensor:
    inputs = words(names, texts, padding=True, truncation=True, max_length=TOKENS_MAX, return_tensors="pt")
    return model(**inputs).logits[:, 0]


def train(model: Any, words: Any, found: list[Entry], draw: random.Random) -> None:
    for part in (model.bert.embeddings, *model.bert.encoder.layer[:FROZEN_LAYERS]):
        part.requires_grad_(False)
    # No dropout: with so few steps it only adds noise.
    model.eval()
    head = [*model.bert.pooler.parameters(), *model.classifier.parameters()]
    layers = [parameter for layer in model.bert.encoder.layer[FROZEN_LAYERS:] for parameter in layer.parameters()]
    optimizer = torch.optim.AdamW([{"params": head, "lr": 1e-3}, {"params": layers, "lr": 1e-4}])
    for _ in range(STEPS):
        batch = contrasts(draw.sample(found, PAIRS), draw)
        if not batch:
            continue
        names, right, wrong = (list(column) for column in zip(*batch, strict=True))
        optimizer.zero_grad()
        found_scores = scores(model, words, names + names, right + wrong)
        targets = torch.cat([torch.ones(len(names)), torch.zeros(len(names))])
        torch.nn.functional.binary_cross_entropy_with_logits(found_scores, targets).backward()
        optimizer.step()


def judge(model: Any, words: Any, found: list[Entry], draw: random.Random) -> tuple[int, int]:
    """In how many of how many contrasts the right paragraph is above the wrong one."""
    triples = contrasts(found, draw)
    right = 0
    with torch.no_grad():
        for start in range(0, len(triples), PAIRS):
            names, good, bad = (list(column) for column in zip(*triples[start : start + PAIRS], strict=True))
            right += int((scores(model, words, names, good) > scores(model, words, names, bad)).sum())
    return right, len(triples)


if __name__ == "__main__":
    main(sys.argv[1])
