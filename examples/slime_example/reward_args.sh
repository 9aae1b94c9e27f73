# To be read by a script that starts slime, in the place of its --rm-type:
#
#   source examples/slime_example/reward_args.sh
#   ray job submit ... -- python3 train.py "${MODEL_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${REWARD_ARGS[@]}" ...
#
# QREWARD_REWARD must be in the environment of slime's actors: in "env_vars" of the job's --runtime-env-json.

export QREWARD_REWARD=${QREWARD_REWARD:-/path/of/reward.yaml}

REWARD_ARGS=(
   --custom-rm-path qreward.integrations.slime.reward
   # a sample that could not be judged leaves the loss; this takes it out of its group's mean and deviation, too
   --custom-reward-post-process-path qreward.integrations.slime.normalize_rewards
)

# Or a group at a time, in which a failure gets the mean of the others. slime has no evaluation with --group-rm.
# REWARD_ARGS=(
#    --group-rm
#    --custom-rm-path qreward.integrations.slime.group_reward
# )
