"""Settings: what is refused, that the refusal says what, where and what to change, and that no secret is ever shown."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward import ConfigError, Endpoint, Hedge, Limits, LoadBalanceStrategy, Priority, Retry, RewardModel, Route, Timeouts
from qreward.settings.base import check_glob, expand_variables
from qreward.settings.policies import priority_level

URL = "http://gpu-0:8000/v1"
TRANSPORT = httpx.MockTransport(lambda _: httpx.Response(200))
SECRET = "sk-hush-7f3a"  # looks like a key, so that a leak is seen


def endpoint(**settings: Any) -> Callable[[], object]:
    return partial(Endpoint, **{"base_url": URL, **settings})


def route(**settings: Any) -> Callable[[], object]:
    return partial(Route, **{"pattern": "judge-*", "endpoints": ("gpu-0",), **settings})


def limits(**settings: Any) -> Callable[[], object]:
    return partial(Limits, **settings)


def connect(seconds: Any) -> Callable[[], object]:
    return partial(Timeouts, connect=seconds)


def budget(share: Any) -> Callable[[], object]:
    return partial(Hedge, budget=share)


REFUSED: list[tuple[Callable[[], object], tuple[str, ...]]] = [
    (Endpoint, ("Endpoint: base_url: ", "required")),
    (endpoint(base_url="gpu-0:8000"), ("base_url: ", "http:// or https://", "write 'http://gpu-0:8000/v1'")),
    (endpoint(base_url="api.example.com/v1/"), ("base_url: ", "write 'https://api.example.com/v1'")),
    (endpoint(base_url=SECRET), ("base_url: ", "URL such as 'http://gpu-0:8000/v1'")),
    (endpoint(base_url="ftp://gpu-0"), ("base_url: ", "http:// or https://")),
    (endpoint(base_url="http:///v1"), ("base_url: ", "http://gpu-0:8000/v1")),
    (endpoint(base_url="http://gpu-0:port/v1"), ("base_url: ", "port")),
    (endpoint(base_url="http://gpu-0:99999/v1"), ("base_url: ", "port")),
    (endpoint(base_url="http://[::1/v1"), ("base_url: ", "host")),
    (endpoint(base_url=f"{URL}\n"), ("base_url: ", "line breaks")),
    (endpoint(base_url=f"{URL} "), ("base_url: ", "blanks")),
    (endpoint(base_url=f"http://me:{SECRET}@gpu-0"), ("base_url: ", "password", "api_key")),
    (endpoint(base_url=f"http://{SECRET}@gpu-0"), ("base_url: ", "user", "api_key")),
    (endpoint(base_url=f"{URL}?key={SECRET}"), ("base_url: ", "query")),
    (endpoint(base_url=f"{URL}#{SECRET}"), ("base_url: ", "fragment")),
    (endpoint(base_url="http://$HOST:8000/v1"), ("base_url: ", "variable", "${NAME}")),
    (endpoint(base_url=f"{URL}/chat/completions"), ("base_url: ", "without /chat/completions", f"write '{URL}'")),
    (endpoint(base_url=f"{URL}/embeddings/"), ("base_url: ", "without /embeddings", f"write '{URL}'")),
    (endpoint(name=" gpu-0 "), ("name: ", "blanks")),
    (endpoint(name="  "), ("name: ", "blanks")),
    (endpoint(name=7), ("name: must be a valid string",)),
    (endpoint(api_key=f"{SECRET}\n"), ("api_key: ", "line break")),
    (endpoint(api_key=7351), ("api_key: ", "string")),
    (endpoint(api_key={SECRET: None}), ("api_key: takes only command and seconds",)),
    (endpoint(api_key={"command": SECRET, "second": 3}), ("api_key: has no setting 'second'; did you mean 'seconds'?",)),
    (endpoint(api_key={"command": f"TOKEN={SECRET} vault read key"}), ("api_key: ", "no shell is used", "variables")),
    (endpoint(api_key="${QREWARD_NOT_SET}"), ("api_key: ", "QREWARD_NOT_SET", "set it")),
    (endpoint(api_key="$JUDGE_KEY"), ("api_key: ", "environment variable", "${NAME}", "${NAME:-default}")),
    (endpoint(api_key="{JUDGE_KEY}"), ("api_key: ", "environment variable", "${NAME}", "${NAME:-default}")),
    (endpoint(api_key="%JUDGE_KEY%"), ("api_key: ", "environment variable", "${NAME}", "${NAME:-default}")),
    (endpoint(headers={"X-Key": "Token $JUDGE_KEY"}), ("headers: ", "environment variable", "${NAME}")),
    (endpoint(headers={"X-Key": f"{SECRET}\r\nHost: x"}), ("headers: ", "'X-Key'", "line break")),
    (endpoint(headers={"X-Key": f"{SECRET}é"}), ("headers: ", "'X-Key'")),
    (endpoint(headers={f"X-Key: {SECRET}": "x"}), ("headers: ", "'X-Key ...'", "name alone")),
    (endpoint(headers={f"Authorization Bearer {SECRET}": ""}), ("headers: 'Authorization ...' is not", "name alone")),
    (endpoint(headers={"": SECRET}), ("headers: ", "not a header name")),
    (endpoint(headers=["X-Key"]), ("headers: must be a valid mapping, such as {name: value}",)),
    (endpoint(models=()), ("models: ", "at least one", "'*'")),
    (endpoint(models="judge-*"), ("models: ", "must be a valid list, such as [a, b]")),
    (endpoint(verify=None), ("verify: must be true, false, or the path of a CA bundle",)),
    (endpoint(models=("judge-[ab",)), ("models: ", "'judge-[ab'", "not closed")),
    (endpoint(models=("judge-* ",)), ("models: ", "blanks")),
    (endpoint(kind="tgi"), ("kind: ", "'openai', 'vllm', 'sglang', 'tei', 'openrlhf', 'nim' or 'openai_batch'")),
    (endpoint(kind="vlm"), ("kind: ", "did you mean 'vllm'?")),
    (endpoint(limts={}), ("Endpoint: unknown setting 'limts'", "did you mean 'limits'?")),
    (endpoint(limits={"rpmm": 3}), ("Endpoint: limits: unknown setting 'rpmm'", "did you mean 'rpm'?")),
    (endpoint(limits=[1]), ("limits: must be a valid mapping or instance of Limits, such as {max_concurrency: ...}",)),
    (endpoint(rpm=600), ("unknown setting 'rpm'; it is part of limits: limits=Limits(rpm=...)",)),
    (endpoint(max_parallel_requests=8), ("limits=Limits(max_concurrency=...), in a file limits.max_concurrency",)),  # LiteLLM's name
    (endpoint(http_client=TRANSPORT, verify=False), ("verify cannot be set together with http_client",)),
    (endpoint(decisions="generative_scoring"), ("needs decision_labels", "[9693, 2201]")),
    (endpoint(decision_labels=(1, 2)), ("decision_labels", "generative_scoring")),
    (endpoint(decision_labels=(1,), decisions="generative_scoring"), ("decision_labels.1: ", "is required")),
    (endpoint(reward={"template": "{prompt}"}), ("reward.template: ", "{prompt} and {response}")),
    (endpoint(reward={"labels": ("a", "a")}), ("reward.labels: ", "twice")),
    (endpoint(reward={"label": True}), ("reward.label", "not true or false")),
    (endpoint(group_header="X Session"), ("group_header: ", "not a header name")),
    (limits(max_parallel_requests=8), ("unknown setting 'max_parallel_requests'; did you mean 'max_concurrency'?",)),
    (endpoint(max_concurency=8), ("unknown setting 'max_concurency'; it is part of limits: limits=Limits(max_concurrency=...)",)),
    (endpoint(concurrency=8), ("it is part of limits: limits=Limits(max_concurrency=...), in a file limits.max_concurrency",)),
    (endpoint(timeout=8), ("timeouts=Timeouts(attempt=...), of a call QRewardClient(..., timeout=...)",)),
    (endpoint(retries=8), ("QRewardClient(..., retry=Retry(attempts=...))",)),
    (endpoint(timeouts=8), ("timeouts: must be a valid mapping or instance of Timeouts",)),
    (lambda: Endpoint(url="http://a.example/v1"), ("unknown setting 'url'; did you mean 'base_url'?",)),
    (lambda: Route("judge", ["a"]), ("Route: settings are given by name, such as Route(pattern=..., endpoints=...)",)),  # type: ignore[call-arg, misc]
    (lambda: Limits(64), ("Limits: settings are given by name, such as Limits(max_concurrency=...)",)),  # type: ignore[call-arg, misc]
    (limits(zzz=1), ("unknown setting 'zzz'", "the settings are 'adaptive', 'max_concurrency'")),
    (limits(max_concurrency=True), ("max_concurrency: ", "not true or false")),
    (limits(max_concurrency=0), ("max_concurrency: must be at least 1, not 0",)),
    (limits(max_concurrency=1.5), ("max_concurrency: must be a valid integer, not 1.5",)),
    (limits(max_concurrency="5%"), ("max_concurrency: must be a valid integer, not '5%'",)),
    (limits(tpm="200,000"), ("tpm: must be a valid number, not '200,000'",)),
    (limits(rpm="600/min"), ("rpm: must be a valid number, not a string",)),
    (connect("300s"), ("connect: must be a valid number, not '300s'",)),
    (connect(0), ("connect: must be more than 0, not 0",)),
    (connect(f"{SECRET}-and-more"), ("connect: must be a valid number, not a string",)),
    (partial(Retry, attempts=0), ("attempts: must be at least 1, not 0",)),
    (budget(-0.1), ("budget: must be at least 0, not -0.1",)),
    (budget("5%"), ("budget: must be a valid number, not '5%'",)),
    (route(endpoints=()), ("endpoints: ", "at least 1")),
    (route(endpoints="gpu-0"), ("endpoints: ", "must be a valid list")),
    (route(endpoints=("gpu-0", "gpu-0")), ("twice", "weights")),
    (route(weights={"gpu-0": 2}), ("weights: ", "no effect", "'expected_finish'", "strategy to 'weighted_round_robin'")),
    (route(weights={"gpu-0": True}), ("weights.gpu-0: ", "not true or false")),
    (route(weights={"gpu-1": 2}), ("weights.gpu-1: ", "the route has no endpoint 'gpu-1'; did you mean 'gpu-0'?")),
    (route(strategy="fastest"), ("strategy: ", "'expected_finish'", "not 'fastest'")),
    (route(strategy="round-robin"), ("strategy: ", "not 'round-robin'; did you mean 'round_robin'?")),
    (route(strategy=f"{SECRET}-and-more"), ("strategy: ", "not a string")),
    (route(strategy=7), ("strategy: ", "not 7")),
    (route(strategy=["fastest"]), ("strategy: ", "not a list")),
    (route(pattern="judge-["), ("pattern: ", "'judge-['", "not closed")),
]


def fault_of(make: Callable[[], object], said: tuple[str, ...]) -> str:
    """What is wrong with a refusal, if anything."""
    try:
        make()
    except ConfigError as error:
        message = str(error)
        checks = {
            f"other words: {message}": all(words in message for words in said),
            f"a remedy that is wrong is worse than none: {message}": message.endswith(said[-1]) or "is not a" not in said[-1],
            f"a secret: {message}": SECRET not in message and "7351" not in message,
            "the validation error behind it may hold the value": error.__cause__ is None and error.__suppress_context__,
        }
        return "; ".join(fault for fault, good in checks.items() if not good)
    return "accepted"


def test_a_wrong_setting_is_refused_in_words_that_help() -> None:
    assert {said: fault for make, said in REFUSED if (fault := fault_of(make, said))} == {}


def test_durations_and_rates_are_positive_finite_numbers() -> None:
    nan, inf = float("nan"), float("inf")
    fields: list[tuple[Any, str]] = [(Timeouts, field) for field in ("connect", "read", "attempt")]
    for kind, field in [*fields, *((Limits, field) for field in ("rpm", "tpm"))]:
        for value in (nan, inf, -inf, 0, -1, True, False, "soon", 10**400):
            with pytest.raises(ConfigError, match=f"{kind.__name__}: {field}: "):
                kind(**{field: value})


def test_every_fault_has_a_line_of_its_own() -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint("ftp://gpu-0", models=())
    lines = str(caught.value).splitlines()
    assert [line[: line.index(": ", 12)] for line in lines] == ["Endpoint: base_url", "Endpoint: models"]
    assert [path for path, _ in caught.value.faults] == [("base_url",), ("models",)]


def test_values_have_their_usual_form() -> None:
    assert Limits(rpm="600").rpm == 600.0, "variables are texts"  # type: ignore[arg-type]
    assert (Endpoint(URL).name, Endpoint(f"{URL}/", name="judge").name) == ("gpu-0:8000", "judge")
    assert Endpoint(f"{URL}/").base_url == URL
    assert sorted([Priority.LOW, Priority.HIGH, Priority.NORMAL]) == [Priority.HIGH, Priority.NORMAL, Priority.LOW]
    assert [priority_level(level) for level in ("high", "LOW", "3", 4, Priority.NORMAL)] == [0, 9, 3, 4, 5]
    for level in (True, 10, -1, "12", "soon", 2.5, None):
        with pytest.raises(ValueError, match="from 0"):
            priority_level(level)
    rendered = [RewardModel(template=template).render("{response}", "b") for template in (None, "<{prompt}|{response}>")]
    assert rendered == ["{response}b", "<{response}|b>"]
    assert Route(pattern="a", endpoints=("x",), strategy="round_robin").strategy is LoadBalanceStrategy.ROUND_ROBIN  # type: ignore[arg-type]


def test_a_variable_is_read_from_the_environment_and_may_have_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    monkeypatch.setenv("EMPTY", "")
    texts = {
        "${JUDGE_KEY}": SECRET,
        "Token ${JUDGE_KEY}": f"Token {SECRET}",
        "${JUDGE_KEY:-none}": SECRET,
        "${QREWARD_NOT_SET:-none}": "none",
        "${EMPTY:-none}": "none",
        "${QREWARD_NOT_SET:-}": "",
        "http://${QREWARD_NOT_SET:-gpu-0}:${QREWARD_NOT_SET:-8000}/v1": URL,
    }
    assert {text: expand_variables(text) for text in texts} == texts
    with pytest.raises(ValueError, match="EMPTY is not set"):
        expand_variables("${EMPTY}")
    made = Endpoint("http://${EMPTY:-gpu-0}:8000/v1", api_key="${JUDGE_KEY}", headers={"X-Key": "Token ${JUDGE_KEY}"}, proxy="${EMPTY:-}")
    assert made == Endpoint(URL, api_key=SECRET, headers={"X-Key": f"Token {SECRET}"}, proxy="")
    assert Endpoint(URL, api_key="${QREWARD_NOT_SET:-}").api_key is None


def test_a_dollar_within_a_text_is_not_a_variable_and_a_variable_written_wrongly_is_refused() -> None:
    for text in ("What is $x$?", "costs $5", "costs $five", "$5", "$${", "`${a.b}` is JavaScript", "pa$word", "plain"):
        assert expand_variables(text) == text
    for text in ("$JUDGE_KEY", "Bearer $JUDGE_KEY", "${}", "${1A}", "${JUDGE_KEY"):
        with pytest.raises(ValueError, match="looks like an environment variable"):
            expand_variables(text)
    for text in ("${A:-${B}}", "http://${A:-${B}}:8000/v1", "${A:-$B}", "${A-x}", "http://a/${A-x}/v1", "${A:?}", "${A:-{b}}"):
        with pytest.raises(ValueError, match="a default cannot hold a variable"):
            expand_variables(text)


def secretive() -> Endpoint:
    return Endpoint(URL, api_key=SECRET, headers={"X-Key": SECRET}, proxy=f"http://me:{SECRET}@proxy:3128")


def test_no_way_of_showing_an_endpoint_and_no_refusal_to_change_it_shows_its_secrets() -> None:
    made = secretive()
    for shown in (repr(made), str(made), f"{made}", repr(made.model_dump()), made.model_dump_json()):
        assert SECRET not in shown
    with pytest.raises(AttributeError, match="make a new one") as caught:
        made.api_key = f"new-{SECRET}"  # type: ignore[assignment]
    assert SECRET not in str(caught.value)


def test_pickling_keeps_every_setting_and_the_secrets_and_a_client_of_ones_own_cannot_be_pickled() -> None:
    made = Route(pattern="a*", endpoints=("x",), strategy="least_connections", weights={"x": 2})  # type: ignore[arg-type]
    for policy in (secretive(), Limits(max_concurrency=4, rpm=60), Timeouts(), Retry(attempts=2), made):
        assert pickle.loads(pickle.dumps(policy)) == policy
    copy = pickle.loads(pickle.dumps(secretive()))
    assert [copy.api_key.get_secret_value(), copy.headers["X-Key"].get_secret_value()] == [SECRET, SECRET]
    with pytest.raises(ConfigError, match=r"'gpu-0:8000' cannot be pickled.*http_client.*in each process"):
        pickle.dumps(Endpoint(URL, http_client=TRANSPORT))


@given(st.text(max_size=20))
def test_any_text_is_a_glob_or_is_refused_with_a_reason(text: str) -> None:
    for pattern in ("judge-7b", "*", "judge-?b", "judge-[78]b", "[!a]*", "[[]", "[]]", "org/model:tag@1", "模型-*"):
        assert check_glob(pattern) == pattern
    for pattern in ("", "judge-[]"):
        with pytest.raises(ValueError, match="bad pattern"):
            check_glob(pattern)
    try:
        assert check_glob(text) == text
    except ValueError as error:
        assert "bad pattern" in str(error)  # noqa: PT017 - a text may also be good


@given(st.text(min_size=1, max_size=30))
def test_no_key_is_ever_shown_whether_it_can_be_sent_or_not(noise: str) -> None:
    key = f"{SECRET}{noise}"
    try:
        shown = repr(Endpoint(URL, api_key=key))
    except ConfigError as error:
        shown = str(error)
    assert SECRET not in shown
