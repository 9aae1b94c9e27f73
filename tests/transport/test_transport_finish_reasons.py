"""Which ``finish_reason`` makes an answer whole, and what the backend makes of the others: in a body, in a stream, in a list."""

from __future__ import annotations

import json
from typing import Any

from stream_tools import DONE, said, sse
from stream_tools import outcome_of as streamed
from transport_server import always

from qreward.codecs.base import Codec, Malformed, Reply, WireRequest, ending_of, is_whole
from qreward.codecs.chat import CHAT, VERBATIM_CHAT, ChatCodec, passthrough
from qreward.codecs.rewards.kinds import COMPLETE, SCORE, bound
from qreward.errors import InvalidResponse
from qreward.integrations.openai import ROUTES
from qreward.judge.calls import JUDGE
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.settings.policies import Endpoint
from qreward.transport.backend import EndpointConnection

MESSAGES = [{"role": "user", "content": "?"}]
READ_AS = {
    "MAX_TOKENS": "length",
    "model_length": "length",
    "content_filter: RECITATION": "content_filter",
    "function_call_filter: MALFORMED_FUNCTION_CALL": "malformed_function_call",
}
NOT_WHOLE = ("length", "MAX_TOKENS", "content_filter", "SAFETY", "abort", "error", "odd")


def body(*reasons: Any) -> bytes:
    choices = [{"index": at, "finish_reason": reason, "message": {"content": "Score: 1"}} for at, reason in enumerate(reasons)]
    return json.dumps({"choices": choices}).encode()


def test_only_an_answer_that_the_model_ended_is_whole() -> None:
    whole = ["stop", "tool_calls", "function_call", "eos_token", "stop_sequence", None, "", "null", {"type": "stop"}]
    whole += ["eos", "end", "end_turn", "tool_use", "STOP", "COMPLETE", "Stop", {"type": "STOP"}]
    assert [reason for reason in whole if not is_whole(ending_of(reason))] == []
    assert [reason for reason in (*NOT_WHOLE, 7, {"type": "abort"}, {}, ["stop"]) if is_whole(ending_of(reason))] == []


def ends(codec: ChatCodec, answer: bytes) -> tuple[str, Any]:
    """The outcome of an answer: the kind of failure, or ``answer``; and the finish reason that the answer has."""
    call = WireRequest(codec, "judge-7b", MESSAGES, {}, None)
    outcome = EndpointConnection(Endpoint("http://gpu-0/v1")).outcome_of(Reply(200, {}, answer), call)
    if isinstance(outcome, Answer):
        return "answer", outcome.response.finish_reason
    assert isinstance(outcome.error, InvalidResponse), outcome
    assert "not whole" in str(outcome.error)
    return outcome.kind.name, None


def test_the_outcome_of_an_answer_depends_on_its_finish_reason_and_its_codec() -> None:
    wanted: dict[tuple[ChatCodec, tuple[Any, ...]], tuple[str, Any]] = {}
    for reasons, plain, judged in (
        *(((reason,), "answer", "answer") for reason in ("stop", None, "tool_calls", "length")),
        *(((reason,), "TRANSIENT", "TRANSIENT") for reason in ("abort", "error", "insufficient_system_resource")),
        *(((reason,), "TRANSIENT", "TRANSIENT") for reason in ("ERROR", "Abort", "cancelled", "network_error", "timeout")),
        *(((reason,), "REFUSED", "answer") for reason in ("content_filter", "SAFETY", "refusal", "sensitive", "pause_turn")),
        (("function_call_filter: MALFORMED_FUNCTION_CALL",), "TRANSIENT", "TRANSIENT"),
        (("content_filter: RECITATION",), "REFUSED", "answer"),
        *(((reason,), "TRANSIENT", "TRANSIENT") for reason in ("time_limit", "MALFORMED_RESPONSE")),
        *(((reason,), "REFUSED", "answer") for reason in ("IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR", "LANGUAGE")),
        *(
            ((reason,), "answer", "answer")
            for reason in ("eos", "end_turn", "end", "STOP", "COMPLETE", "MAX_TOKENS", "model_length", "odd", 7)
        ),
        (("stop", "abort"), "TRANSIENT", "TRANSIENT"),
        (("stop", "content_filter"), "REFUSED", "answer"),
    ):
        for codec, outcome in ((CHAT, plain), (JUDGE, judged), (VERBATIM_CHAT, "answer")):
            told = READ_AS.get(str(reasons[0]), str(reasons[0]).lower() if reasons[0] else None)
            wanted[codec, reasons] = outcome, told if outcome == "answer" else None
    found = {(codec, reasons): ends(codec, body(*reasons)) for codec, reasons in wanted}
    assert {key: value for key, value in found.items() if value != wanted[key]} == {}
    must_be_read_leniently = b'{"usage": "unknown", ' + body("abort")[1:]
    assert ends(CHAT, must_be_read_leniently) == ("TRANSIENT", None)
    without_message = b'{"choices": [{"finish_reason": "content_filter: PROHIBITED_CONTENT"}]}'
    assert [ends(codec, without_message)[0] for codec in (CHAT, JUDGE, VERBATIM_CHAT)] == ["REFUSED", "answer", "answer"]


def test_a_stream_that_did_not_end_well_is_a_failure_after_all_of_its_text_unless_its_program_reads_the_reason() -> None:
    transient, refused = FailureKind.TRANSIENT, FailureKind.REFUSED
    wanted: dict[str, Any] = dict.fromkeys(("stop", "length", "eos", "odd", "STOP"), "answer")
    wanted |= {"abort": transient, "error": transient, "content_filter": refused, "RECITATION": refused}
    found: dict[str, Any] = {}
    for reason in wanted:
        script = always(sse(said("ye") + said("s") + said("", finish=reason) + DONE))
        text, outcome, _ = streamed(script)
        found[reason] = outcome.kind if isinstance(outcome, Failure) else "answer"
        assert text == "yes"
        assert isinstance(outcome, Failure) or outcome.response.finish_reason == reason.lower()
        assert isinstance(streamed(script, what=WireRequest(VERBATIM_CHAT, "judge-7b", MESSAGES, {}, None))[1], Answer), reason
    assert found == wanted


def test_a_legacy_completion_that_was_given_up_is_an_error_of_its_prompt_alone() -> None:
    call = bound(WireRequest(COMPLETE, "davinci", ["a", "b", "c"], {}, None), Endpoint("http://gpu-0/v1"))
    texts = [{"text": "t", "index": at, "finish_reason": reason} for at, reason in enumerate(("stop", "abort", "length"))]
    items = call.codec.decode(json.dumps({"choices": texts}).encode(), call).items  # type: ignore[attr-defined]
    assert [type(item) for item in items] == [list, InvalidResponse, list]
    assert "given up by the server" in str(items[1])


def test_a_completion_that_is_passed_on_unchanged_must_be_whole_for_a_file_and_not_for_the_openai_sdk() -> None:
    def outcome(codec: Codec, choices: Any, **params: Any) -> Any:
        call = WireRequest(codec, "davinci", None, params, None)
        reply = Reply(200, {}, json.dumps({"choices": choices}).encode())
        got = EndpointConnection(Endpoint("http://gpu-0/v1")).outcome_of(reply, call)
        return got.kind if isinstance(got, Failure) else "answer"

    transient, refused, ignored = FailureKind.TRANSIENT, FailureKind.REFUSED, FailureKind.UNSUITABLE
    said = [{"text": "a", "finish_reason": "stop"}, {"text": "b", "finish_reason": "length"}]
    found = [
        (wanted, outcome(passthrough("/v1/completions"), choices, **params), outcome(ROUTES["/completions"][1], choices, **params))
        for wanted, choices, params in (
            ("answer", said, {"prompt": ["q", "r"]}),
            ("answer", said, {"prompt": [1, 2, 3], "n": 2}),
            (transient, [*said, {"text": "c", "finish_reason": "abort"}], {}),
            (refused, [{"text": None, "finish_reason": "content_filter"}], {}),
            (transient, [{"text": None}], {}),
            (transient, [None], {}),
            (ignored, said, {"prompt": "q", "n": 3}),
            (ignored, said, {"prompt": ["q", "r"], "n": 2}),
        )
    ]
    assert found == [(wanted, wanted, "answer") for wanted, _, _ in found]
    assert outcome(passthrough("/chat/completions"), [{"message": {"content": "a"}, "finish_reason": "stop"}]) == "answer"


def test_a_reward_in_a_chat_completion_that_was_given_up_is_none() -> None:
    call = bound(WireRequest(SCORE, "rm", [SCORE.item(("q", "a"))], {}, None), Endpoint("http://gpu-0/v1", kind="nim"))
    found = {}
    for reason in ("stop", "length", None, "abort", "content_filter", "odd"):
        choice = {"index": 0, "finish_reason": reason, "message": {"content": "reward:1.5"}}
        try:
            found[reason] = call.codec.decode(json.dumps({"choices": [choice]}).encode(), call).items  # type: ignore[attr-defined]
        except Malformed as error:
            found[reason] = "not whole" in str(error)
    assert found == {"stop": [1.5], "length": [1.5], None: [1.5], "abort": True, "content_filter": True, "odd": [1.5]}
