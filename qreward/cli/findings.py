"""From what was found of an endpoint to what is wrong with its configuration: each problem a sentence that says what to change.

A problem is what makes calls fail. A note is worth knowing, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from qreward.config import ClientConfig, without_effect
from qreward.core.routing import is_glob, matches
from qreward.policies import Endpoint
from qreward.spelling import closest
from qreward.wire.examining import API_MODELS, Examined
from qreward.wire.probes import MODELS

SOON = 14
"""Days before its end from which a certificate is worth a note."""
SHOWN = 6
"""Names that are listed at most."""
GUARDED = (API_MODELS, MODELS, "/info", "/v1/loads")
"""What a server that wants a key asks one for."""
LISTS = ("openai", "vllm", "nim")
"""Kinds that refuse a model which is not in their list; the others serve the one that they have under any name."""
ANY_NAME = "any"
_REMEDY = "change models or the route, or map names with model_names"


def patterns_of(endpoint: Endpoint, config: ClientConfig) -> list[str]:
    """What callers may ask of it: the patterns of its routes, most telling first, and its own."""
    routed = [route.pattern for route in config.routes if endpoint.name in route.endpoints]
    return sorted(dict.fromkeys((*routed, *endpoint.models)), key=is_glob)


def model_to_ask(endpoint: Endpoint, config: ClientConfig, told: Iterable[str]) -> str | None:
    """A name that callers may give; None if none is known."""
    patterns = patterns_of(endpoint, config)
    known = [*(pattern for pattern in patterns if not is_glob(pattern)), *endpoint.model_names, *_called(endpoint.model_names, told)]
    named = next((name for name in known if any(matches(pattern, name) for pattern in patterns)), None)
    return named if named is not None or endpoint.kind in LISTS else ANY_NAME


def auth_of(endpoint: Endpoint, found: Examined) -> str:
    """Whether the key is taken, in a word or two."""
    has_key = endpoint.api_key is not None or bool(endpoint.headers)
    seen = [found.statuses[path] for path in GUARDED if path in found.statuses]
    if refused := next((status for status in seen if status in (401, 403)), None):
        return f"refused ({refused})" if has_key else f"wanted ({refused})"
    if any(200 <= status < 300 for status in seen):
        return "accepted" if has_key else "not needed"
    return "?"


def problems(
    endpoint: Endpoint, config: ClientConfig, found: Examined, failed: str | None = None, *, answered: bool = False
) -> Iterator[str]:
    """What is wrong, most important first. A call ``failed`` for that reason, or was ``answered``, if there was one."""
    if found.trouble is not None:
        yield found.trouble
        return
    yield from _of_answers(endpoint, found, answered=answered)
    yield from _of_key(endpoint, found)
    yield from _of_kind(endpoint, found)
    yield from _of_models(endpoint, config, found)
    if (days := _days(found)) is not None and days < 0:
        yield f"its certificate has expired {-days:.0f} days ago; renew it"
    if failed is not None:
        yield f"a call failed: {failed}"


def notes(endpoint: Endpoint, config: ClientConfig, found: Examined) -> Iterator[str]:
    """What is worth knowing."""
    if endpoint.kind == "openai" and found.seems is not None:
        yield f"it seems to be a server of kind {found.seems!r}; with kind: {found.seems} it can be asked for scores and for its load"
    if found.reachable and not found.listed and endpoint.kind in LISTS and auth_of(endpoint, found) in ("accepted", "not needed", "?"):
        yield "it does not list its models, so that their names could not be checked; see what a call says with --call"
    if endpoint.probe is not None and endpoint.kind == "openrlhf":
        yield "probe has no effect: a server of kind 'openrlhf' has nothing to ask for"
    if endpoint.base_url.startswith("https") and endpoint.verify is False:
        yield "its certificate is not verified; give verify the path of its CA bundle instead of false"
    if (days := _days(found)) is not None and 0 <= days < SOON:
        yield f"its certificate ends in {days:.0f} days; renew it"
    yield from (text for name, text in without_effect(config) if name == endpoint.name)


def _of_answers(endpoint: Endpoint, found: Examined, *, answered: bool) -> Iterator[str]:
    if found.load.ready is False:
        yield "it answers that it is not ready; wait until it has loaded its model, or look into its log"
    if moved := next((path for path, status in found.statuses.items() if 300 <= status < 400), None):
        yield f"it redirects ({found.statuses[moved]} for {_named(moved)}); redirects are not followed; set base_url to the final one"
    if answered:
        return
    if found.statuses.get(API_MODELS) == 404 and found.statuses.get(MODELS) == 200 and endpoint.reward is None:
        yield f"its API is one level below base_url; set base_url: {endpoint.base_url}/v1"
    elif set(found.statuses.values()) <= {404} and endpoint.kind != "openrlhf":
        yield "it answers 404 to every request; check the host, the port and the path of base_url"


def _of_key(endpoint: Endpoint, found: Examined) -> Iterator[str]:
    auth = auth_of(endpoint, found)
    if auth.startswith("refused"):
        yield f"it rejects the key ({auth[9:-1]}); check api_key, or headers if it is sent there"
    if auth.startswith("wanted"):
        yield f"it requires a key ({auth[8:-1]}); set api_key, such as api_key: ${{JUDGE_KEY}}"


def _of_kind(endpoint: Endpoint, found: Examined) -> Iterator[str]:
    if found.seems not in (None, endpoint.kind) and endpoint.kind != "openai":
        yield f"it seems to be a server of kind {found.seems!r}, not {endpoint.kind!r}; set kind: {found.seems}"


def _of_models(endpoint: Endpoint, config: ClientConfig, found: Examined) -> Iterator[str]:
    told = found.load.models
    if endpoint.kind not in LISTS or not found.listed:
        return
    renamed = endpoint.model_names
    for name, there in renamed.items():
        if there not in told:
            yield f"model_names maps {name!r} to {there!r}, but it serves {_served(there, told)}; correct model_names"
    for pattern in patterns_of(endpoint, config):
        if is_glob(pattern):
            if not any(matches(pattern, name) for name in _called(renamed, told)):
                yield f"it serves {_served(pattern, told)}, none of which matches {pattern!r}; {_REMEDY}"
        elif pattern not in renamed and pattern not in told:
            yield f"it does not serve {pattern!r}, but {_served(pattern, told)}; {_REMEDY}"


def _called(renamed: Mapping[str, str], told: Iterable[str]) -> list[str]:
    """What callers call the models that there are."""
    there = list(told)
    return [*(name for name, target in renamed.items() if target in there), *(name for name in there if name not in renamed.values())]


def _served(name: str, told: tuple[str, ...]) -> str:
    """What it serves, what is most like that name first."""
    names = list(dict.fromkeys((*closest(name, told, most=SHOWN), *told)))
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _named(path: str) -> str:
    return "/models" if path == API_MODELS else path


def _days(found: Examined) -> float | None:
    return None if found.tls is None else found.tls.days(datetime.now(UTC))
