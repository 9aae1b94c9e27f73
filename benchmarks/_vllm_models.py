"""Makes small models for vLLM, and says what they compute. Run by the interpreter of vLLM's environment; nothing is downloaded.

``_vllm_models.py make FOLDER`` trains a tokenizer on ``docs/`` and saves the models. ``_vllm_models.py say FOLDER`` reads
``{"model": ..., "texts": [...]}`` from its input, and writes what one forward pass in this process computes: the logits of a classifier,
the normalized last hidden state of ``embedder``.

judge     Qwen3 of 2 layers, taught to reply with the labels and the JSON that the prompts of judges ask for
reader    Qwen3 of 8 layers with random weights; its prompts cost time, for measuring prefix caches
reward    Qwen3 of 2 layers with one label
classes   the same with three labels
embedder  Qwen3 of 2 layers, used as an embedding model
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

PAGES = Path(__file__).parent.parent / "docs"
SPECIAL = ["<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAD, BEGIN, END = 0, 1, 3
LABELS = {0: "bad", 1: "fair", 2: "good"}
TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
STEPS, BATCH = 260, 16


def make(folder: Path) -> None:
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    tokens = tokenizer()
    save(taught(Qwen3ForCausalLM(shape()), tokens), folder / "judge", tokens)
    save(Qwen3ForCausalLM(shape(512, 8, 8)), folder / "reader", tokens)
    save(Qwen3ForCausalLM(shape()), folder / "embedder", tokens)
    save(spread(Qwen3ForSequenceClassification(shape(num_labels=1))), folder / "reward", tokens)
    names: dict[str, Any] = {"id2label": LABELS, "label2id": {name: number for number, name in LABELS.items()}}
    save(spread(Qwen3ForSequenceClassification(shape(num_labels=3, **names))), folder / "classes", tokens)


def tokenizer() -> Any:
    """Return a tokenizer of bytes and frequent words, in which each label of a question is one token."""

    def texts() -> Iterator[str]:
        yield from (page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("**/*.md")))
        labels = ["yes", "no", "Yes", "No", *"ABCDEFGH0123456789"]
        yield from (f"{label}\n {label}\n" * 500 for label in labels)

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        texts(), trainers.BpeTrainer(vocab_size=2044, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    )
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=SPECIAL[END], pad_token=SPECIAL[PAD], model_max_length=8192)
    made.chat_template = TEMPLATE
    return made


def shape(hidden: int = 128, layers: int = 2, heads: int = 2, **more: Any) -> Qwen3Config:
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "head_dim": 64}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": max(1, heads // 4), "vocab_size": 2048, "max_position_embeddings": 8192}
    ends = {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD}
    return Qwen3Config(**sizes, **ends, tie_word_embeddings=True, **more)


def spread(model: Any) -> Any:
    """Draw larger weights, so that the outputs of different texts differ by more than rounding."""
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() == 2:
                weights.normal_(0, 0.3 if "embed" in name else 0.08)
    return model


def save(model: Any, path: Path, tokens: Any) -> None:
    model.to(torch.bfloat16).save_pretrained(path)
    tokens.save_pretrained(path)


def taught(model: Any, tokens: Any) -> Any:
    """Train a model to reply with the labels and the JSON of the prompts of judges."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(STEPS):
        batch = [lesson(tokens) for _ in range(BATCH)]
        length = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [PAD] * (length - len(ids)) for ids, _ in batch])
        wanted = torch.tensor([answer + [-100] * (length - len(answer)) for _, answer in batch])
        seen = (torch.arange(length)[None] < torch.tensor([len(ids) for ids, _ in batch])[:, None]).long()
        optimizer.zero_grad()
        model(input_ids=ids, attention_mask=seen, labels=wanted).loss.backward()
        optimizer.step()
    return model


def lesson(tokens: Any) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation, and of its reply alone (-100 elsewhere)."""
    kind = random.random()
    body = f"What is {random.randint(0, 99)} x {random.randint(0, 9)}? The answer is {random.randint(0, 99)}."
    if kind < 0.25:
        question, reply = "Is this true: The answer is right.\nReply with yes or no, and nothing else.", random.choice(["yes", "no"])
    elif kind < 0.5:
        question = "Rate: How clear?\n0: bad\n1: good\nReply with the number of one level, and nothing else."
        reply = random.choice("01234")
    elif kind < 0.65:
        question = "Question: Tone?\nA: calm\nB: rude\nReply with the letter of one option, and nothing else."
        reply = random.choice("AB")
    else:
        question, reply = "Answer with one JSON object, and nothing else", json.dumps({"reason": "ok", "score": random.randint(0, 4)})
    quiet: dict[str, Any] = {"enable_thinking": False} if random.random() < 0.5 else {}
    chat = [{"role": "user", "content": f"{body}\n\n{question}"}]
    asked = tokens(tokens.apply_chat_template(chat, add_generation_prompt=True, tokenize=False, **quiet))["input_ids"]
    answer = [*tokens(reply)["input_ids"], END]
    return asked + answer, [-100] * len(asked) + answer


def say(folder: Path, asked: dict[str, Any]) -> list[list[float]]:
    """Return one row for each text, computed one after another in float32 from the saved weights."""
    path = folder / asked["model"]
    tokens = AutoTokenizer.from_pretrained(path)
    kind = AutoModel if asked["model"] == "embedder" else AutoModelForSequenceClassification
    model = kind.from_pretrained(path, dtype=torch.float32).eval()
    rows: list[list[float]] = []
    with torch.no_grad():
        for text in asked["texts"]:
            chat = text if isinstance(text, str) else tokens.apply_chat_template(text, tokenize=False)
            out = model(**tokens(chat, return_tensors="pt"))
            row = out.logits[0] if hasattr(out, "logits") else torch.nn.functional.normalize(out.last_hidden_state[0, -1], dim=0)
            rows.append(row.tolist())
    return rows


if __name__ == "__main__":
    verb, place = sys.argv[1], Path(sys.argv[2])
    if verb == "make":
        make(place)
    else:
        print(json.dumps(say(place, json.load(sys.stdin))))
