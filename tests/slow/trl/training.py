"""Two steps of a real GRPOTrainer with a model of a few thousand weights, made here: run as a program, for it is judged by its exit too.

python training.py FOLDER SETTINGS KIND

KIND: alone; ranks, where the process is one of several, by the environment; or save, for a model and data to train the
example with.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from qreward.integrations.trl import combined, reward

QUESTIONS = [f"What is {first} + {second}?" for first in range(8) for second in range(4)]
END = "<|end|>"
RANK = os.environ.get("RANK", "0")


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE(unk_token=None))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=320, special_tokens=[END], show_progress=False))
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=END, pad_token=END)
    made.chat_template = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant: "
    return made


def model_of(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **size, **special))


def dataset_of(kind: str) -> Dataset:
    """Plain prompts, or conversations; with a column that the judge's prompt names, and the reference."""
    prompts = QUESTIONS if kind == "alone" else [[{"role": "user", "content": text}] for text in QUESTIONS]
    return Dataset.from_dict({"prompt": prompts, "solution": [str(at) for at in range(len(prompts))], "topic": ["sums"] * len(prompts)})


def first_rank_alone(completions: list[Any], **_: Any) -> list[float | None]:
    """A reward function that has no value at all on the other ranks."""
    return [0.0 if RANK == "0" else None] * len(completions)


def functions(kind: str, settings: str) -> Any:
    if kind == "ranks":
        return combined(reward(settings, name="correctness"), first_rank_alone)
    return reward(settings, name="correctness")


class Keeping(TrainerCallback):
    """Keeps what the trainer logs of each step's completions, of which it keeps the last step's only."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.kept: dict[str, list[Any]] = {}

    def on_step_end(self, *_: Any, **__: Any) -> None:
        logs = self.trainer._logs
        columns = {name: logs[name] for name in ("prompt", "completion", "advantages")} | logs["rewards"] | logs["extra"]
        for name, values in columns.items():
            self.kept.setdefault(name, []).extend(values)


def save(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.save_pretrained(folder / "model")
    model_of(tokenizer).save_pretrained(folder / "model")
    lines = [{"prompt": text, "solution": str(at)} for at, text in enumerate(QUESTIONS)]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


def train(folder: str, settings: str, kind: str, tokenizer: PreTrainedTokenizerFast) -> None:
    arguments = GRPOConfig(
        output_dir=folder,
        max_steps=2,
        use_cpu=True,
        bf16=False,
        num_generations=4,
        per_device_train_batch_size=8 if kind == "ranks" else 16,
        max_completion_length=8,
        logging_steps=1,
        log_completions=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        learning_rate=1e-3,
        seed=5,
    )
    keeping = Keeping()
    trainer = keeping.trainer = GRPOTrainer(
        model_of(tokenizer),
        functions(kind, settings),
        args=arguments,
        train_dataset=dataset_of(kind),
        processing_class=tokenizer,
        callbacks=[keeping],
    )
    trainer.train()
    threads = sorted(thread.name for thread in threading.enumerate())
    told = {"columns": keeping.kept, "history": trainer.state.log_history, "threads": threads}
    if RANK == "0":  # which has the columns of all
        Path(folder, "told.json").write_text(json.dumps(told), encoding="utf-8")


def main(folder: str, settings: str, kind: str) -> None:
    tokenizer = tokenizer_of([*QUESTIONS, "user assistant 0123456789"])
    if kind == "save":
        save(Path(folder), tokenizer)
    else:
        train(folder, settings, kind, tokenizer)


if __name__ == "__main__":
    main(*sys.argv[1:])
