"""Run by the interpreter of the server's environment: makes three tiny BERT models, and says what they make of texts.

``tiny_models.py make FOLDER`` saves an embedder, a ranker and a classifier with random weights; ``tiny_models.py say FOLDER`` reads
``{"texts": [...], "query": "..."}`` from its input and writes their vectors, relevances and probabilities, computed in this process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer, models
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
)

LABELS = ["bad", "fair", "good"]
LONGEST = 64
"""Tokens."""


def make(folder: Path) -> None:
    torch.manual_seed(7)
    words = [*"abcdefghijklmnopqrstuvwxyz0123456789", "the", "a", "answer", "question", "is", "of", "word"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *(f"##{each}" for each in "abcdefghijklmnopqrstuvwxyz0123456789")]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(tokens)))
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=LONGEST)
    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    shape |= {"vocab_size": len(tokenizer), "max_position_embeddings": LONGEST, "initializer_range": 0.5}
    BertModel(BertConfig(**shape)).save_pretrained(folder / "bare")
    tokenizer.save_pretrained(folder / "bare")
    words_in = models.Transformer(str(folder / "bare"), max_seq_length=LONGEST)
    SentenceTransformer(modules=[words_in, models.Pooling(32), models.Normalize()], device="cpu").save(str(folder / "embedder"))
    names = dict(enumerate(LABELS))
    for name, more in {
        "ranker": {"num_labels": 1},
        "classifier": {"id2label": names, "label2id": {v: k for k, v in names.items()}},
    }.items():
        BertForSequenceClassification(BertConfig(**shape, **more)).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def say(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    texts, query = asked["texts"], asked["query"]
    vectors = SentenceTransformer(str(folder / "embedder"), device="cpu").encode(texts)
    relevances = logits(folder / "ranker", [query] * len(texts), texts)[:, 0].sigmoid()
    classes = logits(folder / "classifier", texts).softmax(-1)
    return {
        "vectors": [vector.tolist() for vector in vectors],
        "relevances": relevances.tolist(),
        "classes": [dict(zip(LABELS, row.tolist(), strict=True)) for row in classes],
    }


def logits(path: Path, *texts: list[str]) -> torch.Tensor:
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForSequenceClassification.from_pretrained(path).eval()
    with torch.no_grad():
        found: torch.Tensor = model(**tokenizer(*texts, padding=True, truncation=True, return_tensors="pt")).logits
    return found


if __name__ == "__main__":
    verb, place = sys.argv[1], Path(sys.argv[2])
    if verb == "make":
        make(place)
    else:
        print(json.dumps(say(place, json.load(sys.stdin))))
