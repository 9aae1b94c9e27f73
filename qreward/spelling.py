"""Suggestions for misspelt names. Every "did you mean" of the package is made here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

TYPO = 0.85
"""Minimum similarity (0 to 1) of a misspelling where unknown names are allowed: ``time_out`` is ``timeout``, ``store`` is not ``score``."""

_RETRIES = ("retries", "max_retries", "num_retries", "max_attempts")
SYNONYMS = {
    "max_concurrency": ("concurrency", "max_parallel_requests", "max_concurrent_requests", "max_workers"),
    "base_url": ("url", "api_base", "endpoint", "host", "address"),
    "api_key": ("key", "token"),
    "attempts": _RETRIES,
    "retry_times": _RETRIES,
}
"""Name of a setting -> names for it in other libraries, which are often not similar."""


_RETRY = "retries are a setting of the client: QRewardClient(..., retry=Retry(attempts=...)), which counts the first attempt too"
_OTHER_MODEL = "no call is repeated with another model; catch the error and call the other model, or use a Cascade of judges"
ELSEWHERE = {
    **dict.fromkeys(("retries", "num_retries", "max_retries", "retry_policy"), _RETRY),
    **dict.fromkeys(("fallbacks", "context_window_fallbacks", "content_policy_fallbacks"), _OTHER_MODEL),
    "mock_response": "responses are faked by servers: qreward.testing.FakeFleet([FakeEndpoint(..., responder=...)])",
    **dict.fromkeys(("request_timeout", "stream_timeout"), "the timeout of a call is timeout=, in seconds"),
    "api_key": "it belongs to the endpoint: Endpoint(base_url, api_key=...)",
    **dict.fromkeys(("api_base", "base_url"), "it belongs to the endpoint: Endpoint(base_url)"),
    "http_client": "it belongs to the endpoint: Endpoint(base_url, http_client=...)",
    "default_headers": "it belongs to the endpoint: Endpoint(base_url, headers={...})",
    "headers": "the headers of a call are extra_headers=",
    "custom_llm_provider": "every endpoint has the API that its kind names: Endpoint(base_url, kind=...)",
    "drop_params": "no parameter is dropped; leave out what the server does not take",
    "return_exceptions": "a batch never raises for an item: batch.errors has the errors, and batch.raise_for_errors() raises them",
    "reference": "it is an argument of a judge: Judge(client, model=...).score(prompt, response, reference=...)",
    "caching": "responses are not cached; a judge caches its verdicts: Judge(client, cache=...)",
}
"""Well-known argument of another library or place -> the part of an error message that says what to use here."""


def closest(name: object, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known names that are most similar to ``name``, best first. Case is ignored."""
    by_case = {each.lower(): each for each in known}
    return [by_case[each] for each in difflib.get_close_matches(str(name).lower(), by_case, n=most, cutoff=cutoff)]


def meant(name: object, known: Iterable[str], *, cutoff: float = TYPO) -> str | None:
    """Return the known name that ``name`` stands for: itself, its synonym, or the most similar name; None if there is none."""
    names = list(known)
    if name in names:
        return str(name)
    synonym = next((ours for ours in names if name in SYNONYMS.get(ours, ())), None)
    return synonym or next(iter(closest(name, names, cutoff=cutoff)), None)


def did_you_mean(name: object, known: Iterable[str], *, cutoff: float = 0.6, otherwise: str = "valid names:") -> str:
    """Return the end of an error message about a wrong name: the closest valid name, or all valid names."""
    names = list(known)
    if ours := meant(name, names, cutoff=cutoff):
        return f"did you mean {ours!r}?"
    return f"{otherwise} {', '.join(map(repr, names)) or 'none'}"
