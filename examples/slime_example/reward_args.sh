# Source this file in a script that starts slime, and remove --rm-type from the script:
#
#   source examples/slime_example/reward_args.sh
#   ray job submit ... -- python3 train.py "${MODEL_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${REWARD_ARGS[@]}" ...
#
# QREWARD_REWARD must be in the environment of slime's actors: in "env_vars" of the job's --runtime-env-json.

export QREWARD_REWARD=${QREWARD_REWARD:-/path/of/reward.yaml}

REWARD_ARGS=(
   --custom-rm-path qreward.integrations.slime.reward
   # this function also leaves samples that could not be judged out of the mean and deviation of their group
   --custom-reward-post-process-path qreward.integrations.slime.normalize_rewards
)

# Or use one call for each group. A sample without a reward then gets the mean of the judged samples of its group.
# slime has no evaluation with --group-rm.
# REWARD_ARGS=(
#    --group-rm
#    --custom-rm-path qreward.integrations.slime.group_reward
# )
