"""GRPO with TRL, rewarded by the judges of reward.yaml and by a plain function; a completion that could not be judged is left out.

    JUDGE_URL=http://judge:8000/v1 JUDGE_KEY=... python train_grpo.py --model Qwen/Qwen2.5-0.5B-Instruct --data questions.jsonl

Each line of the data has a "prompt" (a text, or messages) and a "solution". Needs trl 1.6 or newer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from brevity import brevity
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

from qreward.integrations.trl import combined, reward

HERE = Path(__file__).parent


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--model", required=True)
    asked.add_argument("--data", required=True)
    asked.add_argument("--output", default="out/trl_example")
    asked.add_argument("--steps", type=int, default=100)
    asked.add_argument("--cpu", action="store_true")
    given = asked.parse_args()

    judged = reward(HERE / "reward.yaml", name="correctness")
    trainer = GRPOTrainer(
        model=given.model,
        reward_funcs=combined(judged, brevity, weights=[1.0, 0.1]),  # without the plain function: reward_funcs=judged
        args=GRPOConfig(
            output_dir=given.output,
            max_steps=given.steps,
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=32 if given.cpu else 512,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=given.cpu,
            bf16=not given.cpu,
        ),
        train_dataset=load_dataset("json", data_files=given.data, split="train"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
