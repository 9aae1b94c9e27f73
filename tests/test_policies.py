"""Settings: what is refused, that the refusal says what, where and what to change, and that no secret is ever shown."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward import ConfigError, Endpoint, Limits, LoadBalanceStrategy, Priority, Retry, Route, Timeouts
from qreward.settings.base import Policy, check_glob, expand_variables

URL = "http://gpu-0:8000/v1"
SECRET = "sk-hush-7f3a"  # looks like a key, so that a leak is seen


def endpoint(**settings: Any) -> Callable[[], Policy]:
    return lambda: Endpoint(**{"base_url": URL, **settings})


def route(**settings: Any) -> Callable[[], Policy]:
    return lambda: Route(**{"pattern": "judge-*", "endpoints": ("gpu-0",), **settings})


REFUSED: list[tuple[str, Callable[[], Policy], tuple[str, ...]]] = [
    ("no URL", Endpoint, ("Endpoint: base_url: ", "required")),
    ("URL without a scheme", endpoint(base_url="gpu-0:8000"), ("base_url: ", "http://")),
    ("host without a scheme", endpoint(base_url="gpu-0:8000"), ("base_url: ", "http:// or https://", "write 'http://gpu-0:8000/v1'")),
    ("domain without a scheme", endpoint(base_url="api.example.com/v1/"), ("base_url: ", "write 'https://api.example.com/v1'")),
    ("key in place of the URL", endpoint(base_url=SECRET), ("base_url: ", "URL such as 'http://gpu-0:8000/v1'")),
    ("URL of another scheme", endpoint(base_url="ftp://gpu-0"), ("base_url: ", "http:// or https://")),
    ("URL without a host", endpoint(base_url="http:///v1"), ("base_url: ", "http://gpu-0:8000/v1")),
    ("URL with a word for its port", endpoint(base_url="http://gpu-0:port/v1"), ("base_url: ", "port")),
    ("URL with a port that is none", endpoint(base_url="http://gpu-0:99999/v1"), ("base_url: ", "port")),
    ("URL with half an IPv6 address", endpoint(base_url="http://[::1/v1"), ("base_url: ", "host")),
    ("URL with a line break", endpoint(base_url=f"{URL}\n"), ("base_url: ", "line breaks")),
    ("URL with a blank at its end", endpoint(base_url=f"{URL} "), ("base_url: ", "blanks")),
    ("URL with a password", endpoint(base_url=f"http://me:{SECRET}@gpu-0"), ("base_url: ", "password", "api_key")),
    ("URL with a key in its query", endpoint(base_url=f"{URL}?key={SECRET}"), ("base_url: ", "query")),
    ("name with blanks around it", endpoint(name=" gpu-0 "), ("name: ", "blanks")),
    ("name of blanks", endpoint(name="  "), ("name: ", "blanks")),
    ("key with a line break", endpoint(api_key=f"{SECRET}\n"), ("api_key: ", "line break")),
    ("key that is a number", endpoint(api_key=7351), ("api_key: ", "string")),
    ("key of a variable that is not set", endpoint(api_key="${QREWARD_NOT_SET}"), ("api_key: ", "QREWARD_NOT_SET", "set it")),
    ("header with a line break", endpoint(headers={"X-Key": f"{SECRET}\r\nHost: x"}), ("headers: ", "'X-Key'", "line break")),
    ("header outside ASCII", endpoint(headers={"X-Key": f"{SECRET}é"}), ("headers: ", "'X-Key'")),
    ("header written as one line", endpoint(headers={f"X-Key: {SECRET}": "x"}), ("headers: ", "'X-Key'", "name alone")),
    ("header without a name", endpoint(headers={"": SECRET}), ("headers: ", "not a header name")),
    ("no models", endpoint(models=()), ("models: ", "at least one", "'*'")),
    ("one text for models", endpoint(models="judge-*"), ("models: ", "list", "['judge-*']")),
    ("glob that is not closed", endpoint(models=("judge-[ab",)), ("models: ", "'judge-[ab'", "not closed")),
    ("glob with an empty class", endpoint(models=("judge-[]",)), ("models: ", "'judge-[]'", "not closed")),
    ("glob with blanks around it", endpoint(models=("judge-* ",)), ("models: ", "blanks")),
    ("empty glob", endpoint(models=("",)), ("models: ", "non-empty")),
    ("unknown kind", endpoint(kind="tgi"), ("kind: ", "'openai', 'vllm', 'sglang', 'tei', 'openrlhf', 'nim' or 'openai_batch'")),
    ("unknown setting", endpoint(limts={}), ("Endpoint: unknown setting 'limts'", "did you mean 'limits'?")),
    ("unknown setting inside", endpoint(limits={"rpmm": 3}), ("Endpoint: limits: unknown setting 'rpmm'", "did you mean 'rpm'?")),
    ("setting of another setting", endpoint(rpm=600), ("unknown setting 'rpm'; it is part of limits: limits=Limits(rpm=...)",)),
    ("setting of LiteLLM", endpoint(max_parallel_requests=8), ("limits=Limits(max_concurrency=...), in a file limits.max_concurrency",)),
    (
        "setting of LiteLLM inside",
        lambda: Limits(max_parallel_requests=8),  # type: ignore[call-arg]
        ("unknown setting 'max_parallel_requests'; did you mean 'max_concurrency'?",),
    ),
    (
        "unknown setting like no other",
        lambda: Limits(zzz=1),  # type: ignore[call-arg]
        ("unknown setting 'zzz'", "the settings are 'adaptive', 'connects_per_second'"),
    ),  # type: ignore[call-arg]
    ("true for a number of requests", lambda: Limits(max_concurrency=True), ("max_concurrency: ", "not true or false")),
    ("true for a rate", lambda: Limits(rpm=True), ("rpm: ", "not true or false")),
    ("true for a duration", lambda: Timeouts(connect=True), ("connect: ", "not true or false")),
    ("true for a weight", route(weights={"gpu-0": True}), ("weights.gpu-0: ", "not true or false")),
    ("true for a share", lambda: Retry(budget=True), ("budget: ", "not true or false")),
    ("no requests at all", lambda: Limits(max_concurrency=0), ("max_concurrency: must be at least 1, not 0",)),
    ("half a request", lambda: Limits(max_concurrency=1.5), ("max_concurrency: must be a whole number, not 1.5",)),  # type: ignore[arg-type]
    ("no attempts", lambda: Retry(attempts=0), ("attempts: must be at least 1, not 0",)),
    ("negative share", lambda: Retry(budget=-0.1), ("budget: must be at least 0, not -0.1",)),
    (
        "weights without effect",
        route(weights={"gpu-0": 2}),
        ("weights: ", "no effect", "'expected_finish'", "strategy to 'weighted_round_robin'"),
    ),
    ("no endpoints in a route", route(endpoints=()), ("endpoints: ", "at least 1")),
    ("one text for the endpoints of a route", route(endpoints="gpu-0"), ("endpoints: ", "must be a list")),
    ("an endpoint twice in a route", route(endpoints=("gpu-0", "gpu-0")), ("twice", "weights")),
    (
        "weight of an endpoint that is not in the route",
        route(weights={"gpu-1": 2}),
        ("weights.gpu-1: ", "the route has no endpoint 'gpu-1'; did you mean 'gpu-0'?"),
    ),
    ("unknown strategy", route(strategy="fastest"), ("strategy: ", "'expected_finish'", "not 'fastest'")),
    ("misspelt strategy", route(strategy="round-robin"), ("strategy: ", "not 'round-robin'; did you mean 'round_robin'?")),
    ("misspelt kind", endpoint(kind="vlm"), ("kind: ", "did you mean 'vllm'?")),
    ("seconds with a unit", lambda: Timeouts(connect="300s"), ("connect: '300s' is not a number of seconds; write 300",)),  # type: ignore[arg-type]
    ("minutes", lambda: Timeouts(connect="5 min"), ("connect: '5 min' is not a number of seconds; write 300",)),  # type: ignore[arg-type]
    ("milliseconds", lambda: Timeouts(connect="250ms"), ("connect: '250ms' is not a number of seconds; write 0.25",)),  # type: ignore[arg-type]
    ("a number with commas", lambda: Limits(tpm="200,000"), ("tpm: '200,000' is not a number; write 200000",)),  # type: ignore[arg-type]
    ("a number with a decimal comma", lambda: Retry(base="1,5"), ("base: '1,5' is not a number of seconds",)),  # type: ignore[arg-type]
    ("per cent of whole requests", lambda: Limits(max_concurrency="5%"), ("max_concurrency: '5%' is not a whole number",)),  # type: ignore[arg-type]
    ("a share in per cent", lambda: Retry(budget="5%"), ("budget: '5%' is not a number; write 0.05",)),  # type: ignore[arg-type]
    ("a rate with a unit", lambda: Limits(rpm="600/min"), ("rpm: a string is not a number",)),  # type: ignore[arg-type]
    ("no seconds", lambda: Timeouts(connect=0), ("connect: must be more than 0 seconds, not 0",)),
    ("a key where seconds belong", lambda: Timeouts(connect=f"{SECRET}-and-more"), ("connect: a string is not a number of seconds",)),  # type: ignore[arg-type]
    ("a key where a strategy belongs", route(strategy=f"{SECRET}-and-more"), ("strategy: ", "not a string")),
    ("a list for limits", endpoint(limits=[1]), ("limits: must be a mapping of settings, not a list",)),
    ("a number for a name", endpoint(name=7), ("name: must be a string, not a number",)),
    (
        "a variable without braces for a key",
        endpoint(api_key="$JUDGE_KEY"),
        ("api_key: ", "environment variable", "${NAME}", "${NAME:-default}"),
    ),
    (
        "a variable without braces in a header",
        endpoint(headers={"X-Key": "Token $JUDGE_KEY"}),
        ("headers: ", "environment variable", "${NAME}"),
    ),
    ("a variable that is written wrongly", endpoint(api_key="${JUDGE-KEY}"), ("api_key: ", "environment variable", "${NAME}")),
    ("a variable without braces in a URL", endpoint(base_url="http://$HOST:8000/v1"), ("base_url: ", "variable", "${NAME}")),
    (
        "a URL that goes on to the chats",
        endpoint(base_url=f"{URL}/chat/completions"),
        ("base_url: ", "without /chat/completions", f"write '{URL}'"),
    ),
    ("a URL that goes on to embeddings", endpoint(base_url=f"{URL}/embeddings/"), ("base_url: ", "without /embeddings", f"write '{URL}'")),
    ("bad pattern of a route", route(pattern="judge-["), ("pattern: ", "'judge-['", "not closed")),
]


def faults_of(make: Callable[[], Policy], said: tuple[str, ...]) -> list[str]:
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
        return [fault for fault, good in checks.items() if not good]
    return ["accepted"]


def test_a_wrong_setting_is_refused_in_words_that_help() -> None:
    found = {case: faults_of(make, said) for case, make, said in REFUSED}
    assert {case: faults for case, faults in found.items() if faults} == {}


def test_durations_and_rates_are_positive_finite_numbers() -> None:
    nan, inf = float("nan"), float("inf")
    wrong: list[tuple[type[Policy], str, object]] = [
        *((Timeouts, field, value) for field in ("connect", "read", "attempt") for value in (nan, inf, -inf, 0, -1, True, False, "soon")),
        *((Limits, field, value) for field in ("rpm", "tpm", "connects_per_second") for value in (nan, inf, 0, -1, True)),
    ]
    for kind, field, value in wrong:
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
    assert (Endpoint(URL).name, Endpoint(URL, name="judge").name) == ("gpu-0:8000", "judge")
    assert Endpoint(f"{URL}/").base_url == URL
    assert sorted([Priority.LOW, Priority.HIGH, Priority.NORMAL]) == [Priority.HIGH, Priority.NORMAL, Priority.LOW]
    assert Route(pattern="a", endpoints=("x",), strategy="round_robin").strategy is LoadBalanceStrategy.ROUND_ROBIN  # type: ignore[arg-type]


def test_variables_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_HOST", "judge.example.com")
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    made = Endpoint("https://${JUDGE_HOST}/v1", api_key="${JUDGE_KEY}", headers={"X-Key": "Token ${JUDGE_KEY}"}, proxy="")
    assert made.base_url == "https://judge.example.com/v1"
    assert made.api_key is not None
    assert made.api_key.get_secret_value() == SECRET
    assert made.headers["X-Key"].get_secret_value() == f"Token {SECRET}"


def test_a_variable_may_have_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    monkeypatch.setenv("EMPTY", "")
    texts = {
        "${JUDGE_KEY:-none}": SECRET,
        "${QREWARD_NOT_SET:-none}": "none",
        "${EMPTY:-none}": "none",
        "${QREWARD_NOT_SET:-}": "",
        "http://${QREWARD_NOT_SET:-gpu-0}:${QREWARD_NOT_SET:-8000}/v1": URL,
    }
    assert {text: expand_variables(text) for text in texts} == texts
    assert Endpoint(URL, api_key="${QREWARD_NOT_SET:-}").api_key is None
    with pytest.raises(ValueError, match="EMPTY is not set"):
        expand_variables("${EMPTY}")


def test_a_dollar_within_a_text_is_not_a_variable_and_a_variable_written_wrongly_is_refused() -> None:
    for text in ("What is $x$?", "costs $5", "costs $five", "$5", "$${", "`${a.b}` is JavaScript", "pa$word", "plain"):
        assert expand_variables(text) == text
    for text in ("$JUDGE_KEY", "Bearer $JUDGE_KEY", "${}", "${1A}", "${JUDGE_KEY-x}", "${JUDGE_KEY"):
        with pytest.raises(ValueError, match="looks like an environment variable"):
            expand_variables(text)


def secretive() -> Endpoint:
    return Endpoint(URL, api_key=SECRET, headers={"X-Key": SECRET}, proxy=f"http://me:{SECRET}@proxy:3128")


def test_no_way_of_showing_an_endpoint_shows_its_secrets() -> None:
    made = secretive()
    for shown in (repr(made), str(made), f"{made}", repr(made.model_dump()), made.model_dump_json()):
        assert SECRET not in shown


def test_a_setting_cannot_be_changed_and_the_refusal_does_not_show_the_new_value() -> None:
    made = secretive()
    with pytest.raises(AttributeError, match="make a new one") as caught:
        made.api_key = f"new-{SECRET}"  # type: ignore[assignment]
    assert SECRET not in str(caught.value)


def test_pickling_keeps_every_setting_and_the_secrets() -> None:
    route = Route(pattern="a*", endpoints=("x",), strategy="least_connections", weights={"x": 2})  # type: ignore[arg-type]
    for policy in (secretive(), Limits(max_concurrency=4, rpm=60), Timeouts(), Retry(attempts=2), route):
        assert pickle.loads(pickle.dumps(policy)) == policy
    copy = pickle.loads(pickle.dumps(secretive()))
    assert copy.api_key.get_secret_value() == SECRET
    assert copy.headers["X-Key"].get_secret_value() == SECRET


def test_an_endpoint_with_a_client_of_its_own_says_why_it_cannot_be_pickled() -> None:
    with pytest.raises(ConfigError, match=r"'gpu-0:8000' cannot be pickled.*http_client.*in each process"):
        pickle.dumps(Endpoint(URL, http_client=object()))


def test_a_good_glob_is_returned_as_it_is() -> None:
    for pattern in ("judge-7b", "*", "judge-?b", "judge-[78]b", "[!a]*", "[[]", "[]]", "org/model:tag@1", "模型-*"):
        assert check_glob(pattern) == pattern


@given(st.text(max_size=20))
def test_any_text_is_a_glob_or_is_refused_with_a_reason(text: str) -> None:
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
