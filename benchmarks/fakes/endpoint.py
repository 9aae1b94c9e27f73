"""A fake endpoint with a simulated model server, every dialect of decisions, chats that ask for one label, and written verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from aiohttp import web
from pydantic import Field, field_validator

from fakes.decision_routes import FAKE_DECISIONS
from fakes.live_model import LiveModel
from fakes.model_server import MODELS, ServedModel
from fakes.next_token import NextToken, read_prompt
from fakes.synthetic_writer import write_verdict
from fakes.vllm import GUARDED, MOST_LOGPROBS, SampledChat, completion_of, vllm_of
from qreward.errors import ConfigError
from qreward.testing import FakeEndpoint
from qreward.testing.bodies import canonical, chat_completion, encode, usage
from qreward.testing.kinds import CHAT, SERVER_KINDS, ErrorResponse, FakeServerKind, Job, Route, RouteCall
from qreward.testing.responders import Write
from qreward.testing.server import FakeServer, Incoming


class ModelEndpoint(FakeEndpoint):
    """Holds the settings of a fake endpoint, and of its model server.

    Args:
        kind: as for ``FakeEndpoint``; ``vllm`` answers as vLLM 0.32, which recordings of a running server show.
        task: with kind ``vllm``, what the model does, and which routes there are: ``generate`` has chats and text completions, ``embed``
            embeddings and scores, ``classify`` labels and, with one label, scores. None has all routes.
        max_model_len: with kind ``vllm``, the maximum number of tokens of a prompt and its response. Longer prompts get HTTP 400.
        served: simulated model server with a prefix cache, which computes the chats. The value is ``"8B"``, ``"70B"``, a
            :class:`~fakes.model_server.ServedModel`, or a mapping. A mapping has the member ``model`` with one of the two names, and new
            values for some fields of this model. The time of the model server is added to the time of ``latency``, which also gives the
            number of output tokens. A stream begins when the whole answer is computed. Phases do not slow the model server.
        dialect: server whose routes for typed questions are imitated:

            - None: no routes but those of ``decisions``.
            - ``openai``: ``/v1/decisions`` in OpenAI's form, with at most 400 questions and 255 options, and with refusals.
            - ``vllm``: ``/v1/decisions`` in vLLM's form, ``/v1/systemone``, ``/generative_scoring`` and ``/tokenize``. ``/v1/decisions``
              accepts at most 64 questions, 26 options and 10 levels, and only text of users. This route refuses unknown members.
            - ``vllm_unsupported``: vLLM with a model that cannot decide: ``/v1/decisions`` and ``/v1/systemone`` answer HTTP 501.
            - ``generative_scoring``: an older vLLM, with only ``/generative_scoring`` and ``/tokenize``.
            - ``sglang``: ``/v1/decisions`` in SGLang's form, and ``/v1/systemone``.
            - ``systemone``: SGLang with a model that was trained for decisions: only ``/v1/systemone``, without label mass.
              ``/v1/decisions`` answers HTTP 400.

            The model server computes one prompt per question; with ``openai``, one prompt for all questions.
        logprobs: whether the server returns log probabilities. False imitates a server that ignores ``logprobs`` in a chat. The synthetic
            judge answers a chat that lists labelled options, asks for one of them, and sets ``logprobs``.
        synthetic: whether the synthetic judge writes the verdicts, in the form that a prompt of ``Judge`` describes.
    """

    task: Literal["generate", "classify", "embed"] | None = None
    max_model_len: int = Field(default=131_072, ge=1)
    served: ServedModel | None = None
    dialect: Literal["openai", "vllm", "vllm_unsupported", "generative_scoring", "sglang", "systemone"] | None = None
    logprobs: bool = True
    synthetic: bool = False

    def __init__(self, name: str | None = None, **data: Any) -> None:
        super().__init__(name, **data)

    @field_validator("served", mode="before")
    @classmethod
    def _named_model(cls, value: object) -> object:
        changes = {"model": value} if isinstance(value, str) else value
        if not isinstance(changes, Mapping) or "model" not in changes:
            return value
        if (model := MODELS.get(str(changes["model"]))) is None:
            raise ValueError(f"must be {', '.join(map(repr, MODELS))} or a ServedModel")
        return {**model.model_dump(), **{name: each for name, each in changes.items() if name != "model"}}


class ModelServer(FakeServer):
    """Serves a ``ModelEndpoint``, and holds its model server."""

    _made_for: FakeEndpoint | None = None

    def new_writer(self, spec: FakeEndpoint) -> Write:
        assert isinstance(spec, ModelEndpoint)
        if spec.synthetic:
            return lambda messages, _digest: write_verdict(messages, spec.synthetic_judge)
        return super().new_writer(spec)

    def new_cache(self) -> Any:
        assert isinstance(self.spec, ModelEndpoint)
        return super().new_cache() if self.spec.served is None else LiveModel(self.spec.served)

    @property
    def kind(self) -> FakeServerKind:
        if self._made_for is not (spec := self.spec):
            assert isinstance(spec, ModelEndpoint)
            kind = vllm_of(spec.task, spec.scoring.labels) if spec.kind == "vllm" else SERVER_KINDS[spec.kind]
            decisions = FAKE_DECISIONS[spec.dialect]
            routes = {path: _with_errors(route, decisions.error) for path, route in decisions.routes.items()}
            if CHAT in kind.routes and spec.kind != "nim":
                routes[CHAT] = partial(_labelled, kind)
            self._made_for, self._kind = spec, replace(kind, routes={**kind.routes, **routes})
        return self._kind

    async def __call__(self, request: Incoming) -> web.StreamResponse:
        response = await super().__call__(request)
        if response.status == 405:
            response.headers["Allow"] = "POST"
        return response

    async def _computed(self, job: Job) -> int | None:
        try:
            return await super()._computed(job)
        except ValueError as error:
            raise ErrorResponse(400, str(error), "bad_request", code="context_length_exceeded") from None

    async def _status(self, request: Incoming) -> web.StreamResponse:
        try:
            return await super()._status(request)
        except ErrorResponse as error:
            if self.spec.kind == "vllm" and error.counted == "not_found":
                self._check_key(request)
                error.status = 405 if request.path in self.kind.routes else 404
            raise

    def _check_key(self, request: Incoming) -> None:
        if self.spec.kind != "vllm" or request.path.startswith(GUARDED):
            super()._check_key(request)

    def _headers(self) -> dict[str, str]:
        headers = super()._headers()
        return {name: value for name, value in headers.items() if self.spec.kind != "vllm" or name != "x-request-id"}


ModelEndpoint.server_class = ModelServer


def _with_errors(route: Route, write: Callable[[str, ErrorResponse], bytes]) -> Route:
    """Return a route that writes its errors in a format of its own."""

    def serve(call: RouteCall) -> Job:
        try:
            return route(call)
        except ErrorResponse as error:
            error.body = write(call.path, error)
            raise

    return serve


def _labelled(kind: FakeServerKind, call: RouteCall) -> Job:
    """Serve a chat. If it asks for one of several labels and for log probabilities, the answer is one token."""
    job, spec, request = kind.routes[CHAT](call), call.spec, call.read(SampledChat)
    assert isinstance(spec, ModelEndpoint)
    most = request.top_logprobs or 0
    if most and not request.logprobs:
        raise call.invalid("when using `top_logprobs`, `logprobs` must be set to true.")
    if not 0 <= most <= MOST_LOGPROBS:
        raise call.invalid(f"Invalid value for 'top_logprobs': must be from 0 to {MOST_LOGPROBS}, not {most}.")
    prompt = read_prompt(request.messages) if request.logprobs and not request.stream else None
    if prompt is None:
        return job
    try:
        token = NextToken.of(prompt, spec.synthetic_judge)
    except ConfigError as error:
        raise ErrorResponse(500, f"the synthetic judge: {error}", "responder", "server_error") from None
    logprobs = token.logprobs(most, request.logprob_token_ids or () if spec.kind == "vllm" else ()) if spec.logprobs else None
    if logprobs is not None and spec.kind == "vllm":
        logprobs = {"content": logprobs["content"]}
    count = request.n or 1

    def body(cached: int | None) -> bytes:
        complete = completion_of if spec.kind == "vllm" else chat_completion
        made = complete(request, job.digest, token.content, usage(job.prompt, count, cached))
        for choice in made["choices"]:
            choice |= {"logprobs": logprobs, "finish_reason": "length"}
        return encode(made)

    prompts = [canonical(request.messages)]
    return job._replace(chunks=None, prompts=prompts, service=spec.latency.seconds(1), length=1, completion=count, body=body)
