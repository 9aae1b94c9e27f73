"""Groups as rewards: the responses to one prompt are ranked, where a trainer passes them together, and a failed ranking is no number."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_fakes import REWARDER, SETTINGS, FakeScorer, installed
from test_trl_functions import Trainer

from qreward.cli import parser
from qreward.errors import BadRequest, ConfigError, QRewardError, RequestTimeout
from qreward.integrations import slime, verl
from qreward.integrations.areal import ADAPTER as AREAL
from qreward.integrations.openrlhf import ADAPTER as OPENRLHF
from qreward.integrations.roll import ADAPTER as ROLL
from qreward.integrations.trainers import RewardConfig, Rewarder, load_reward_config
from qreward.integrations.trl import reward
from qreward.judge.ranking import Ranking
from qreward.results import Usage


class RankingScorer(FakeScorer):
    """Scores a response, which is a number or ends with a message of a number, with this number; a group with ``late`` gets no ranking."""

    def __init__(self) -> None:
        super().__init__()
        self.ranked: list[dict[str, Any]] = []

    async def rank(self, prompt: Any, responses: Any, *, reference: Any = None, timeout: Any, priority: Any, **fields: Any) -> Ranking:
        self.ranked.append({"prompt": prompt, "responses": list(responses), "reference": reference, **fields})
        if "late" in responses:
            error = RequestTimeout("no ranking")
            error.usage = Usage(total_tokens=40)
            raise error
        scores = tuple(float(each if isinstance(each, str) else each[-1]["content"]) for each in responses)
        return Ranking(scores, (0.1,) * len(responses), usage=Usage(total_tokens=100))


RANKED = SETTINGS | {"rank": "scores"}


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> RankingScorer:
    made = RankingScorer()
    installed(monkeypatch)
    monkeypatch.setattr(REWARDER, "make_scorer", lambda client, who, **_: made)
    return made


def rewarder(**settings: Any) -> Rewarder:
    return Rewarder(RankingScorer(), 5.0, config=RewardConfig(**{"reward_model": "m", "rank": "scores", **settings}))


async def test_items_that_differ_only_in_their_responses_are_ranked_and_keep_their_order() -> None:
    made = rewarder()
    items = [
        {"prompt": prompt, "response": response, "reference": reference}
        for prompt, response, reference in (("p", "0.2", "r"), ("q", "0.5", None), ("p", "0.9", "r"), ("q", "0.4", None), ("p", "0.1", "x"))
    ]
    found = await made.score_many(items)
    assert [each.score(None) for each in found] == [0.2, 0.5, 0.9, 0.4, None]
    assert "cannot be ranked alone" in found[4].reason
    assert [(each["prompt"], each["responses"], each["reference"]) for each in made.scorer.ranked] == [  # type: ignore[attr-defined]
        ("p", ["0.2", "0.9"], "r"), ("q", ["0.5", "0.4"], None),
    ]  # fmt: skip
    assert [each.tokens for each in found] == [100, 100, 0, 0, 0], "the tokens of a group count once"
    advantages = await rewarder(rank="advantages").score_many(items[:4])
    assert [round(each.score(None) or 0.0, 3) for each in advantages] == [-1.0, 1.0, 1.0, -1.0]


async def test_a_group_without_a_ranking_and_a_response_that_is_none_have_no_reward() -> None:
    found = await rewarder().score_many([{"prompt": "p", "response": each} for each in ("0.2", "late", None, "0.9")])
    assert [each.score(None) for each in found] == [None] * 4
    assert [type(each.error) for each in found] == [RequestTimeout, RequestTimeout, BadRequest, RequestTimeout]
    assert [each.tokens for each in found] == [40, 0, 0, 0]
    found = await rewarder().score_many([{"prompt": "p", "response": each} for each in ("0.2", None, "0.9")])
    assert [each.score(None) for each in found] == [0.2, None, 0.9]


def test_only_a_judge_ranks() -> None:
    with pytest.raises(ConfigError, match="rank: only a judge compares responses"):
        Rewarder(FakeScorer(), 5.0, config=RewardConfig(reward_model="m", rank="scores"))
    with pytest.raises(ConfigError, match="rank"):
        RewardConfig(reward_model="m", rank="yes")  # type: ignore[arg-type]


async def test_trl_ranks_the_completions_of_a_prompt_unless_they_are_spread_over_processes(scorer: RankingScorer) -> None:
    ranked, trainer = reward(RANKED), Trainer()
    prompts = ["p", "p", "q", "q"]
    assert await trainer.call(ranked, ["0.2", "0.9", "late", "0.4"], prompts) == [0.2, 0.9, None, None]
    trainer.num_generations = 4  # type: ignore[attr-defined]
    asked = len(scorer.ranked)
    with pytest.raises(ConfigError, match=r"this process has 2 of 4; set per_device_train_batch_size to a multiple of num_generations"):
        await trainer.call(ranked, ["0.2", "0.9", "0.3", "0.4"], prompts)
    assert len(scorer.ranked) == asked
    trainer.num_generations_eval, trainer.model = 2, SimpleNamespace(training=False)  # type: ignore[attr-defined]
    assert await trainer.call(ranked, ["0.2", "0.9", "0.3", "0.4"], prompts) == [0.2, 0.9, 0.3, 0.4]
    own = reward(judge=RankingScorer(), rank="advantages")  # type: ignore[arg-type]
    assert await trainer.call(own, ["0.2", "0.9", "0.3", "0.4"], prompts) == pytest.approx([-1.0, 1.0, -1.0, 1.0])


async def test_trl_ranks_the_completions_of_a_prompt_together_whether_or_not_they_called_a_tool(scorer: RankingScorer) -> None:
    def said(text: str) -> list[dict[str, Any]]:
        return [{"role": "assistant", "content": text}]

    ask = [{"role": "user", "content": "2 + 2?"}]
    calls = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}, {"role": "tool", "content": "4"}]
    group = [said("0.2"), [*calls, *said("0.9")], [*calls, *calls, *said("0.5")], [*calls, {"role": "assistant", "content": None}]]
    assert await Trainer().call(reward(RANKED), group, [ask] * 4) == [0.2, 0.9, 0.5, None]
    assert [(each["prompt"], each["responses"]) for each in scorer.ranked] == [(ask, ["0.2", *group[1:3]])]


async def test_slime_ranks_a_group_and_refuses_to_rank_a_sample(scorer: RankingScorer) -> None:
    def sample(response: Any) -> Any:
        return SimpleNamespace(prompt="p", response=response, label="l", metadata={}, group_index=1, remove_sample=False)

    args = SimpleNamespace(qreward_config=RANKED)
    assert await slime.group_reward(args, [sample("0.2"), sample("0.9")]) == [0.2, 0.9]
    lost = [sample("0.2"), sample("late")]
    await slime.group_reward(args, lost)
    assert [each.remove_sample for each in lost] == [True, True]
    with pytest.raises(ConfigError, match="use --group-rm --custom-rm-path"):
        await slime.reward(args, sample("0.2"))


def test_a_batch_of_verl_is_ranked_and_has_lists_of_one_length(scorer: RankingScorer) -> None:
    extras = [{"question": each, "num_turns": turns} for turns, each in enumerate("pqpq")]
    found = verl.compute_scores(["d"] * 4, ["0.2", "0.5", "0.9", "0.4"], ["t"] * 4, extras, **RANKED)
    assert [each["score"] for each in found] == [0.2, 0.5, 0.9, 0.4]
    assert [each["judge_tokens"] for each in found] == [100.0, 100.0, 0.0, 0.0]
    with pytest.raises(RequestTimeout):
        verl.compute_scores(["d"] * 2, ["0.2", "late"], ["t"] * 2, extras[::2], **RANKED)
    found = verl.compute_scores(["d"] * 2, ["0.2", "late"], ["t"] * 2, extras[::2], **RANKED, on_failure=-1)
    assert [(each["score"], each["judge_ok"]) for each in found] == [(-1.0, 0.0), (-1.0, 0.0)]
    with pytest.raises(ValueError, match="'solution_strs': 2, 'ground_truths': 1"):
        verl.compute_scores(["d"] * 2, ["0.2", "0.9"], ["t"], extras[:2], **RANKED)


async def test_trainers_that_pass_one_response_refuse_to_rank_before_the_first_request(scorer: RankingScorer) -> None:
    config = load_reward_config(RANKED)
    for adapter in (AREAL, OPENRLHF, ROLL):
        with pytest.raises(ConfigError, match=f"rank: scores is not possible with {adapter.trainer}, which does not pass the responses"):
            adapter.checked(config)
    with pytest.raises(QRewardError, match="verl, which scores each sample by itself; leave it out, or call compute_scores"):
        await verl.compute_score("d", "0.2", "t", {"question": "p"}, **RANKED)
    assert scorer.ranked == []


def test_a_missing_rank_of_slime_is_the_middle_of_all_ranks() -> None:
    for rank, middle in (("scores", 0.5), ("advantages", 0.0)):
        judge = {"model": "m", "range": [2, 4]}
        assert slime.middle(RewardConfig(judge=judge, rank=rank)) == middle  # type: ignore[arg-type]


def test_a_run_of_lines_which_are_no_groups_refuses_to_rank(tmp_path: Path) -> None:
    file = tmp_path / "reward.json"
    file.write_text(json.dumps(RANKED))
    args = parser("run").parse_args(["run", "in.jsonl", "--output", "out.jsonl", "--judge", str(file)])
    with pytest.raises(ConfigError, match=r"reward.json: rank: the lines of a run are no groups"):
        args.run(args)
