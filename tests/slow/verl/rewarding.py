"""verl's own reward code on made samples, told in JSON: run as a program, for it is judged by its exit too.

python rewarding.py FOLDER alone|workers OVERRIDES...
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from verl import DataProto

SAMPLES = 48
PADDED = 24
END = "<|end|>"


def answers() -> list[str]:
    return [f"answer {number}" for number in range(SAMPLES)]


def saved_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE(unk_token=None))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator(answers(), trainers.BpeTrainer(vocab_size=300, special_tokens=[END], show_progress=False))
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=END, pad_token=END)
    made.save_pretrained(folder)
    return made


def config_of(tokenizer: Path, overrides: list[str]) -> Any:
    """verl's own configuration, with what a user would write on the command line, and its old keys brought to their new places."""
    with initialize_config_dir(config_dir=str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", [f"actor_rollout_ref.model.path={tokenizer}", "reward.num_workers=2", *overrides])
    from verl.experimental.reward_loop import migrate_legacy_reward_impl

    return migrate_legacy_reward_impl(config)


def samples(tokenizer: PreTrainedTokenizerFast) -> DataProto:
    """As the trainer has them after generation: padded, with the data's columns."""
    texts = answers()
    responses, masks = [], []
    for text in texts:
        tokens = [*tokenizer.encode(text), tokenizer.eos_token_id]
        responses.append(tokens + [tokenizer.pad_token_id] * (PADDED - len(tokens)))
        masks.append([0, 1, 1, *([1] * len(tokens)), *([0] * (PADDED - len(tokens)))])
    prompts = torch.ones((SAMPLES, 3), dtype=torch.int64)
    tensors = {"prompts": prompts, "responses": torch.tensor(responses), "attention_mask": torch.tensor(masks)}
    tensors["input_ids"] = torch.cat([prompts, tensors["responses"]], dim=1)
    columns = {
        "data_source": ["numbers"] * SAMPLES,
        "reward_model": [{"style": "rule", "ground_truth": str(at)} for at in range(SAMPLES)],
        "extra_info": [{"index": at, "question": f"Which number is {at}?", "split": "train"} for at in range(SAMPLES)],
        "raw_prompt": [[{"role": "user", "content": f"Which number is {at}?"}] for at in range(SAMPLES)],
    }
    return DataProto.from_dict(tensors=tensors, non_tensors={name: objects(values) for name, values in columns.items()})


def objects(values: list[Any]) -> Any:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


async def alone(config: Any, tokenizer: PreTrainedTokenizerFast, data: DataProto) -> list[Any]:
    """The manager as each worker loads it, in a loop that runs, and all samples at once; an error is told by its name."""
    from verl.trainer.ppo.reward import load_reward_manager

    manager = load_reward_manager(config, tokenizer)
    calls = [manager.run_single(data[at : at + 1]) for at in range(len(data))]
    results = await asyncio.gather(*calls, return_exceptions=True)
    return [type(result).__name__ if isinstance(result, BaseException) else result for result in results]


def workers(config: Any, data: DataProto) -> Any:
    """The whole batch by the two workers, and then each sample by one of them, as an agent loop does that streams its samples."""
    import ray
    from verl.experimental.reward_loop import RewardLoopManager

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False, logging_level="ERROR")
    try:
        manager = RewardLoopManager(config)
        scored = manager.compute_rm_score(data)
        handles = getattr(manager, "reward_loop_worker_handles", None) or manager.reward_loop_workers  # the name before 0.8
        streamed = ray.get([handles[at % 2].compute_score.remote(data[at : at + 1]) for at in range(len(data))])
        keys = scored.meta_info["reward_extra_keys"]
        last = data.batch["attention_mask"][:, 3:].sum(dim=1) - 1
        return {
            "keys": keys,
            "extra": {key: scored.non_tensor_batch[key].tolist() for key in keys},
            "at_the_last_token": scored.batch["rm_scores"][torch.arange(len(data)), last].tolist(),
            "in_all": scored.batch["rm_scores"].sum(dim=1).tolist(),
            "streamed": streamed,
        }
    finally:
        ray.shutdown()


def main(folder: str, kind: str, *overrides: str) -> None:
    place = Path(folder, "tokenizer")
    tokenizer = saved_tokenizer(place)
    config, data = config_of(place, list(overrides)), samples(tokenizer)
    told = asyncio.run(alone(config, tokenizer, data)) if kind == "alone" else workers(config, data)
    Path(folder, "told.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    main(*sys.argv[1:])
