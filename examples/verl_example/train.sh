#!/usr/bin/env bash
# GRPO with verl, with rewards of the judges of reward.yaml. The first block has the settings for qreward. All others are verl's own.
# Needs GPUs, verl 0.7 or newer, and the data of verl's examples/data_preprocess/gsm8k.py.
#
#   JUDGE_URL=http://judge:8000/v1 JUDGE_KEY=... MODEL=Qwen/Qwen2.5-0.5B-Instruct DATA=$HOME/data/gsm8k ./train.sh
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

reward=(
  reward.custom_reward_function.path=pkg://qreward.integrations.verl
  reward.custom_reward_function.name=compute_score
  # An absolute path, because the workers run in other folders. Single settings on the command line override those of the file.
  +reward.custom_reward_function.reward_kwargs.config="$here/reward.yaml"
  # +reward.custom_reward_function.reward_kwargs.on_failure=-1.0

  # To use the manager, which gets the prompt from verl, uncomment these three lines, and remove path and name above.
  # reward.reward_manager.source=importlib
  # reward.reward_manager.name=QRewardManager
  # reward.reward_manager.module.path=pkg://qreward.integrations.verl

  reward.num_workers=8 # processes that compute rewards; shared limits apply to all of them together
)

exec python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_files="$DATA/train.parquet" \
  data.val_files="$DATA/test.parquet" \
  data.train_batch_size=256 \
  data.max_prompt_length=512 \
  data.max_response_length=1024 \
  actor_rollout_ref.model.path="$MODEL" \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 \
  trainer.logger='["console"]' \
  trainer.n_gpus_per_node="${GPUS:-1}" \
  trainer.nnodes=1 \
  trainer.total_epochs=1 \
  "${reward[@]}" \
  "$@"
