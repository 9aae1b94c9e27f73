"""Options of calls and parameters of servers: a misspelt option is refused, every parameter a server knows is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from client_tools import HI, MODEL, Recorder, endpoint, use
from openai.types import CompletionCreateParams, EmbeddingCreateParams, ModerationCreateParams
from openai.types.chat import completion_create_params

from qreward import ConfigError, Judge, Priority, QRewardClient, RewardModelScorer, SyncQRewardClient, YesNo
from qreward.options import OPTIONS, ModelParams, check_params
from qreward.settings.policies import priority_level

MISSPELT = {
    "time_out": "timeout",
    "Timeout": "timeout",
    "timeouts": "timeout",
    "progres": "progress",
    "dead_line": "deadline",
    "priorty": "priority",
    "hedges": "hedge",
    "tennant": "tenant",
    "on_results": "on_result",
    "keep_result": "keep_results",
    "extrabody": "extra_body",
    "on_interupt": "on_interrupt",
    "max_concurrent_stream": "max_concurrent_streams",
}
SERVERS = """
    n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop stop_token_ids ignore_eos max_tokens
    min_tokens logprobs prompt_logprobs prompt_logprob_token_ids prompt_logprob_start logprob_token_ids flat_logprobs detokenize
    skip_special_tokens spaces_between_special_tokens include_stop_str_in_output output_kind stream_interval skip_clone structured_outputs
    logit_bias allowed_token_ids extra_args bad_words skip_reading_prefix_cache thinking_token_budget repetition_detection
    routed_experts_prompt_start trace_decode_token_ids
    use_beam_search length_penalty truncate_prompt_tokens truncation_side best_of echo add_generation_prompt continue_final_message
    add_special_tokens documents chat_template chat_template_kwargs mm_processor_kwargs media_io_kwargs guided_json guided_regex
    guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern structural_tag request_id logits_processors
    return_tokens_as_token_ids return_token_ids cache_salt kv_transfer_params vllm_xargs include_reasoning reasoning reasoning_effort
    normalize use_activation activation softmax text_1 text_2 query data_1 data_2 top_n return_documents task encoding_format dimensions
    embed_dtype endianness
    max_new_tokens stop_regex min_new_tokens json_schema regex ebnf no_stop_trim custom_params sampling_seed return_hidden_states
    return_routed_experts routed_experts_start_len return_cached_tokens_details lora_path session_id session_params
    custom_logit_processor images_config bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank
    data_parallel_rank rid extra_key ngram_corpus_id custom_labels separate_reasoning stream_reasoning input_ids input_embeds
    return_logprob logprob_start_len top_logprobs_num token_ids_logprob return_text_in_logprobs image_data video_data audio_data
    modalities sampling_params
    user metadata store prediction service_tier verbosity truncate raw_scores return_text truncation_direction prompt_name inputs texts
    nvext input_type rank_fields max_tokens_per_doc provider models transforms route plugins usage thinking enable_thinking top_a
    reasoning_format tools functions score scale cache
"""
"""Parameters of vLLM, SGLang and others."""


def refusal(asking: Callable[[], object]) -> str:
    try:
        asking()
    except ConfigError as error:
        return str(error)
    return "accepted"


def test_a_misspelt_option_of_any_call_is_refused_with_its_right_name_and_with_the_way_to_send_it() -> None:
    wrong = {}
    for name, option in MISSPELT.items():
        said = refusal(lambda name=name: check_params({name: 3}))  # type: ignore[misc]
        if f"'{name}' is not an option of this call; did you mean '{option}'?" not in said or f"extra_body={{'{name}': ...}}" not in said:
            wrong[name] = said
    assert not wrong
    assert "extra_query is not supported" in refusal(lambda: check_params({"extra_query": {"a": 1}}))


def test_a_misspelt_parameter_of_models_is_refused_with_its_right_name_although_unknown_ones_are_sent() -> None:
    misspelt = {"temperatur": "temperature", "tempreature": "temperature", "max_token": "max_tokens", "Top_P": "top_p", "seeds": "seed"}
    said = {name: refusal(lambda name=name: check_params({name: 3})) for name in misspelt}  # type: ignore[misc]
    assert {name: words for name, words in said.items() if f"did you mean '{misspelt[name]}'? A parameter of the server" not in words} == {}


ELSEWHERE = {
    **dict.fromkeys(
        ("max_concurrency", "concurrency", "max_workers", "max_concurency"), "Endpoint(base_url, limits=Limits(max_concurrency"
    ),
    "rpm": "Endpoint(base_url, limits=Limits(rpm=...))",
    "retries": "QRewardClient(..., retry=Retry(attempts=...))",
    "max_retrys": "QRewardClient(..., retry=Retry(attempts=...))",
    "retry": "QRewardClient(endpoints, retry=...)",
    "observers": "QRewardClient(endpoints, observers=...)",
    "weight": "Endpoint(base_url, weight=...)",
    "kind": "Endpoint(base_url, kind=...)",
    "return_exceptions": "batch.raise_for_errors()",
    "reference": "Judge(client, model=...).score(prompt, response, reference=...)",
    "refrence": "did you mean 'reference'?",
}


def test_a_setting_of_another_place_is_refused_in_a_call_and_in_a_client_with_its_place_before_anything_is_sent() -> None:
    recorder, wrong = Recorder(), {}
    for name, place in ELSEWHERE.items():
        asking: Callable[[QRewardClient], Any] = partial(QRewardClient.batch_chat_completion, batch_messages=[HI], model=MODEL, **{name: 3})  # type: ignore[arg-type]
        said = refusal(partial(use, QRewardClient([endpoint(recorder)]), asking))
        if place not in said or f"extra_body={{'{name}': ...}}" not in said:
            wrong[name] = said
    assert wrong == {}
    assert recorder.requests == []
    for name in ("concurrency", "rpm", "retries"):
        given: dict[str, Any] = {name: 3}
        assert ELSEWHERE[name] in refusal(partial(QRewardClient, ["http://a.example/v1"], **given))


def test_prompts_and_responses_as_two_lists_are_refused_with_what_to_write_and_not_shown() -> None:
    recorder = Recorder()
    said = refusal(lambda: use(QRewardClient([endpoint(recorder)]), lambda client: client.batch_score(["a"], ["secret"])))  # type: ignore[arg-type]
    assert "not a list; several items are one argument, such as zip(prompts, responses)" in said
    assert "secret" not in said


def test_every_call_client_and_scorer_refuses_a_misspelt_option_before_anything_is_sent(tmp_path: Path) -> None:
    recorder = Recorder()
    known = {
        name
        for kind in (QRewardClient, SyncQRewardClient)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and "options" in inspect.signature(method).parameters
    }
    others = {"rerank": ("query", ["document"]), "decide": ("text", [YesNo("It is true.")]), "run": ([], tmp_path / "out.jsonl")}
    wrong = {}
    for name in sorted(known):
        given = others.get(name, ([HI] if name.startswith("batch") else HI,))
        said = refusal(lambda: use(QRewardClient([endpoint(recorder)]), lambda it: getattr(it, name)(*given, model=MODEL, time_out=3)))  # noqa: B023
        if "did you mean 'timeout'" not in said:
            wrong[name] = said
    client = QRewardClient([endpoint(recorder)])
    made: dict[str, Callable[[], object]] = {
        "QRewardClient": lambda: QRewardClient(["http://a.example/v1"], time_out=3),  # type: ignore[call-arg]
        "SyncQRewardClient": lambda: SyncQRewardClient(["http://a.example/v1"], time_out=3),  # type: ignore[call-arg]
        "Judge": lambda: Judge(client, model=MODEL, time_out=3),
        "Judge.from_config": lambda: Judge.from_config(client, {"model": [MODEL], "params": {"time_out": 3}}),
        "RewardModelScorer": lambda: RewardModelScorer(client, MODEL, time_out=3),
    }
    wrong |= {name: said for name, make in made.items() if "did you mean 'timeout'" not in (said := refusal(make))}
    assert len(known) > 12
    assert not wrong
    assert recorder.requests == []


def test_an_option_of_other_calls_is_refused_and_not_sent_as_a_parameter() -> None:
    recorder = Recorder()
    said = refusal(lambda: use(QRewardClient([endpoint(recorder)]), lambda client: client.chat_completion(HI, MODEL, deadline=3)))  # type: ignore[call-arg]
    assert "'deadline' is an option of other calls, not of this one; only batches have a deadline" in said
    assert recorder.requests == []


def test_no_parameter_that_a_server_knows_is_taken_for_a_misspelt_option() -> None:
    chat, text = completion_create_params.CompletionCreateParamsBase, CompletionCreateParams
    kinds = [chat, *getattr(text, "__args__", (text,)), EmbeddingCreateParams, ModerationCreateParams]
    names = {name for kind in kinds for name in get_type_hints(kind)} | set(SERVERS.split())
    assert len(names) > 150
    refused = {name: said for name in sorted(names - {"model"}) if (said := refusal(lambda: check_params({name: 1}))) != "accepted"}  # noqa: B023
    assert not refused
    assert OPTIONS.isdisjoint(ModelParams.__optional_keys__)


def test_extra_body_sends_a_parameter_of_any_name() -> None:
    recorder = Recorder()
    use(
        QRewardClient([endpoint(recorder)]),
        lambda client: client.chat_completion(HI, MODEL, extra_body={"time_out": 3, "priority": 2, "fallbacks": ["b"]}, acme_mode=1),  # type: ignore[call-arg]
    )
    expected = {"time_out": 3, "priority": 2, "fallbacks": ["b"], "acme_mode": 1}
    assert {name: recorder.bodies[0].get(name) for name in expected} == expected


def test_arguments_of_litellm_and_options_of_the_openai_client_are_refused_with_what_does_the_same_here() -> None:
    hints = {
        "num_retries": "Retry(attempts=...)",
        "max_retries": "Retry(attempts=...)",
        "fallbacks": "catch the error and call the other model",
        "mock_response": "qreward.testing.FakeFleet",
        "request_timeout": "timeout=, in seconds",
        "api_key": "Endpoint(base_url, api_key=...)",
        "api_base": "Endpoint(base_url)",
        "headers": "extra_headers=",
        "drop_params": "leave out what the server does not take",
    }
    recorder = Recorder()
    for name, hint in hints.items():
        given: Any = {name: "sk-secret"}
        ask: Callable[[QRewardClient], Any] = partial(QRewardClient.chat_completion, messages=HI, model=MODEL, **given)
        said = refusal(partial(use, QRewardClient([endpoint(recorder)]), ask))
        assert hint in said, (name, said)
        assert f"extra_body={{'{name}': ...}}" in said
        assert "sk-secret" not in said
    assert recorder.bodies == []
    assert "Retry(attempts=...)" in refusal(lambda: QRewardClient(["http://a.example/v1"], max_retries=3))  # type: ignore[call-arg]


def test_a_priority_may_be_a_name_in_upper_or_lower_case() -> None:
    given: dict[Any, int] = {"high": 0, "HIGH": 0, "Normal": 5, "low": 9, Priority.LOW: 9, 3: 3}
    assert {value: priority_level(value) for value in given} == given
    recorder = Recorder()
    use(QRewardClient([endpoint(recorder)]), lambda client: client.chat_completion(HI, MODEL, priority="high"))
    assert "priority" not in recorder.bodies[0]
