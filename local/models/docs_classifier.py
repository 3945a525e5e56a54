"""``python -m local.models.docs_classifier FOLDER``: a classifier that works: MiniLM, frozen, under a head trained here.

It infers from the first paragraph of a docstring which subject the library is about. What it gets right on files that it has
never seen is printed as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any, Final

import torch
from transformers import AutoTokenizer, BertForSequenceClassification

from local import hub
from local.models.corpus import SUBJECTS, entries

LABELS: Final = sorted(SUBJECTS)
STEPS: Final = 300
BATCH: Final = 64


def main(folder: str) -> None:
    torch.manual_seed(20261120)
    torch.set_num_threads(2)
    source = str(hub.packaged_model())
    words = AutoTokenizer.from_pretrained(source)
    model = BertForSequenceClassification.from_pretrained(
        source, num_labels=len(LABELS), id2label=dict(enumerate(LABELS)), label2id={label: n for n, label in enumerate(LABELS)}
    )
    found = entries()
    features = first_tokens(model, words, [entry.text for entry in found])
    targets = torch.tensor([LABELS.index(entry.subject) for entry in found])
    held_out = torch.tensor([entry.held_out for entry in found])
    train_head(model, features[~held_out], targets[~held_out])
    with torch.no_grad():
        right = (logits(model, features[held_out]).argmax(-1) == targets[held_out]).float().mean().item()
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    most = Counter(targets[held_out].tolist()).most_common(1)[0][1] / int(held_out.sum())
    report = {"trained_on": int((~held_out).sum()), "held_out": int(held_out.sum()), "accuracy": right, "majority": most}
    print(json.dumps({name: round(value, 3) for name, value in report.items()}))


def first_tokens(model: Any, words: Any, texts: list[str]) -> torch.Tensor:
    """The encoder's last state at [CLS] for each text; the encoder is frozen, so once is enough."""
    model.eval()
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    found = torch.empty(len(texts), model.config.hidden_size)
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            inputs = words([texts[n] for n in batch], padding=True, return_tensors="pt")
            found[batch] = model.bert(**inputs).last_hidden_state[:, 0]
    return found


def logits(model: Any, features: torch.Tensor) -> torch.Tensor:
    """What the whole model answers: BERT's own pooler (a dense layer and tanh over [CLS]), then the classifier."""
    return model.classifier(torch.tanh(model.bert.pooler.dense(features)))


def train_head(model: Any, features: torch.Tensor, targets: torch.Tensor) -> None:
    """Trains pooler and classifier. MiniLM's own pooler was never trained: it embeds by the mean of all tokens."""
    parameters = [*model.bert.pooler.parameters(), *model.classifier.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.05)
    for _ in range(STEPS):
        batch = torch.randint(len(features), (BATCH,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits(model, features[batch]), targets[batch], label_smoothing=0.1).backward()
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
