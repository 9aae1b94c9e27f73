"""``QRewardClient``, the asynchronous client and the main entry point of the package.

The methods of the client validate the arguments and pass the requests to the client's runtime.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from qreward.chat_namespace import ChatNamespace, Completions
from qreward.codecs.chat import CHAT
from qreward.codecs.rewards.base import Operation, RewardScore
from qreward.codecs.rewards.kinds import CLASSIFY, COMPLETE, MODERATE, RERANK, SCORE
from qreward.deciding import decision_preparer
from qreward.decisions import MIN_LABEL_MASS, Decision, Question
from qreward.engine.batch import BatchWaiter, Items
from qreward.errors import ConfigError
from qreward.live.snapshot import Snapshot, stats_of
from qreward.options import (
    DEFAULT,
    BatchOptions,
    BatchStreamOptions,
    BulkOptions,
    CallOptions,
    ChatBatchOptions,
    ChatOptions,
    ClientSettings,
    StreamOptions,
    Watching,
    arguments_of,
    batch_items,
    client_settings,
    endpoint_of,
    preparer,
    show_options,
)
from qreward.results import BatchResult, Explanation, FleetStats
from qreward.runtime import Runtime
from qreward.scoring.merge_spec import EmbeddingsSpec, MergeSpec
from qreward.settings.client import ClientConfig, config_from_env, load_config
from qreward.settings.policies import Endpoint, LoadBalanceStrategy, Route
from qreward.streaming import BatchStream, Stream

if TYPE_CHECKING:
    from openai.types import CompletionChoice, CreateEmbeddingResponse, Moderation
    from openai.types.chat import ChatCompletion

    from qreward.bulk.inputs import Inputs
    from qreward.bulk.outputs import BulkReport
    from qreward.judge.types import AnyScorer
    from qreward.live.channel import LiveView
    from qreward.live.trace import Trace
    from qreward.telemetry import Telemetry


class QRewardClient:
    """An asynchronous client that distributes requests over many endpoints.

    The client can be created without a running event loop, and used from several event loops and threads at once. Limits hold over all
    loops and threads. A pickled client keeps its configuration and its telemetry, but not its observers. After a fork, the client in the
    child process has the same configuration, and starts without requests and connections.

    Args:
        endpoints: one or more endpoints, each as an ``Endpoint``, a mapping of its settings, or a URL.
        routes, retry, hedge, prefix_affinity, max_queued, timeout, transport: see :class:`~qreward.settings.client.ClientConfig`. For the
            timeout of the items of a batch, see :class:`~qreward.options.ChatBatchOptions`.
        telemetry: selects the OpenTelemetry data to record. By default, all data is recorded. Nothing is exported until an OpenTelemetry
            SDK is set up. None records nothing.
        observers: objects that receive an event for each step of a call; see :class:`~qreward.observers.Observer`.
        backend_factory: function that returns the HTTP backend of one event loop; for tests.
        clock: function that returns monotonic seconds; for tests in virtual time.

    Raises:
        ConfigError: a setting is invalid, or two endpoints have the same name.

    Example:
        >>> from qreward import Endpoint, QRewardClient
        >>> client = QRewardClient([Endpoint("http://gpu-0:8000/v1", name="gpu-0", models=["judge-*"])])
        >>> client.list_routes()[0].pattern
        'judge-*'
    """

    def __init__(self, endpoints: Iterable[Endpoint | Mapping[str, Any] | str] | None = None, **settings: Unpack[ClientSettings]) -> None:
        config, others = client_settings(endpoints, settings)
        self._runtime = Runtime(config, **others)

    @classmethod
    def from_config(cls, source: str | Path | Mapping[str, Any] | ClientConfig, **watching: Unpack[Watching]) -> QRewardClient:
        """Create a client from a YAML, JSON or TOML file, or from a mapping.

        ``${VAR}`` in a string is replaced with the environment variable ``VAR``.

        Args:
            source: path of the file, a mapping of settings, or a ``ClientConfig``.
            watching: ``telemetry`` and ``observers``, as for :class:`QRewardClient`.

        Raises:
            ConfigError: the configuration is invalid. The message names the file, the setting and the correction.
        """
        return cls._from(load_config(source), **watching)

    @classmethod
    def from_env(cls, **watching: Unpack[Watching]) -> QRewardClient:
        """Create a client from environment variables.

        ``QREWARD_CONFIG`` is the path of a configuration file. Without it, ``OPENAI_BASE_URL`` (or ``OPENAI_API_BASE``) and
        ``OPENAI_API_KEY`` define one endpoint.

        Args:
            watching: ``telemetry`` and ``observers``, as for :class:`QRewardClient`.

        Raises:
            ConfigError: none of the variables is set, or the configuration is invalid.
        """
        return cls._from(config_from_env(os.environ), **watching)

    @classmethod
    def _from(cls, config: ClientConfig, telemetry: Telemetry | None = DEFAULT, observers: Iterable[object] = ()) -> QRewardClient:
        client = cls.__new__(cls)
        client._runtime = Runtime(config, telemetry=telemetry, observers=observers)
        return client

    # requests

    @property
    def chat(self) -> ChatNamespace[Completions]:
        """``chat.completions.create(...)`` as in the openai SDK, for code written for the SDK's client."""
        return ChatNamespace(Completions(self))

    async def chat_completion(self, messages: Iterable[Any], model: str, **options: Unpack[ChatOptions]) -> ChatCompletion:
        """Request one chat completion.

        Args:
            messages: the conversation, as in the OpenAI API: dicts, or message objects of the openai package.
            model: name of the model; selects the route.
            options: see :class:`~qreward.options.ChatOptions`. Any other name becomes a member of the JSON body, such as ``temperature``.

        Returns:
            The openai package's ``ChatCompletion``.

        Raises:
            RequestError: the request failed; see the subclasses. The error's ``attempts`` lists every attempt. A response that the server
                aborted or filtered raises ``InvalidResponse``. A response that ends at the token limit raises no error. It is returned with
                the ``finish_reason`` ``"length"``.
            Rejected: the queue is full, every endpoint of the route is marked unhealthy, or the client was closed.
            NoEndpoint: no route matches the model.
            ConfigError: an argument is invalid. Nothing was sent.
        """
        given, params = arguments_of(ChatOptions, options)
        call, scheduling = preparer(CHAT, model, params, **given)(messages), self._runtime.request_options(given)
        del given  # many calls may wait at once
        completion: ChatCompletion = (await self._runtime.one(call, scheduling)).value
        return completion

    async def batch_chat_completion(
        self, batch_messages: Iterable[Iterable[Any]] | AsyncIterable[Iterable[Any]], model: str, **options: Unpack[ChatBatchOptions]
    ) -> BatchResult[ChatCompletion]:
        """Request many chat completions, distributed over all endpoints of the route.

        Args:
            batch_messages: the conversations, as a list, an iterator or an async iterator. The input is read only as fast as its items are
                sent, at most ``prefix_affinity.look_ahead`` items ahead.
            model: name of the model; selects the route.
            options: see :class:`~qreward.options.ChatBatchOptions`. Any other name becomes a member of the JSON body.

        Returns:
            Results in the order of the input. A failed item is a ``Result`` with an error.

        Raises:
            NoEndpoint, ConfigError, BadRequest, ClientClosed: raised before anything is sent.
            BatchInterrupted: the input or ``on_result`` raised an ``Exception``, which is the ``__cause__``. Requests already sent were
                finished first, and the ``BatchInterrupted`` has their results. Any other ``BaseException``, such as
                ``KeyboardInterrupt``, cancels the requests and is raised unchanged.

        Example:
            >>> async def judge(client, conversations):
            ...     batch = await client.batch_chat_completion(conversations, model="judge-7b", temperature=0)
            ...     return batch.texts(default="")
        """
        given, params = arguments_of(ChatBatchOptions, options)
        prepare = preparer(CHAT, model, params, **given)
        return await self._runtime.batch(BatchWaiter, prepare, model, batch_items("batch_messages", batch_messages), given).run()

    def stream_chat_completion(self, messages: Iterable[Any], model: str, **options: Unpack[StreamOptions]) -> Stream:
        """Stream one chat completion token by token.

        An attempt is ended if its first token, or a pause between tokens, takes far longer than usual at the endpoint.

        Args:
            messages, model: as in :meth:`chat_completion`.
            options: see :class:`~qreward.options.StreamOptions`. Any other name becomes a member of the JSON body. Token usage is requested
                unless ``stream_options`` is set.

        Raises:
            NoEndpoint, ConfigError, BadRequest: raised by this method. All other errors are raised where the stream is read.

        Example:
            >>> async def ask(client, messages):
            ...     async for token in client.stream_chat_completion(messages, model="judge-7b"):
            ...         print(token, end="")
        """
        given, params = arguments_of(StreamOptions, options)
        return self._runtime.stream(preparer(CHAT, model, params, **given)(messages), given)

    def batch_stream_chat_completion(
        self, batch_messages: Iterable[Iterable[Any]] | AsyncIterable[Iterable[Any]], model: str, **options: Unpack[BatchStreamOptions]
    ) -> BatchStream:
        """Stream many chat completions over all endpoints of the route, token by token.

        Args:
            batch_messages, model: as in :meth:`batch_chat_completion`.
            options: see :class:`~qreward.options.BatchStreamOptions`. Any other name becomes a member of the JSON body.

        Raises:
            NoEndpoint, ConfigError: raised by this method. The error of an item is in the item's result.

        Example:
            >>> async def ask(client, conversations):
            ...     async for index, token in client.batch_stream_chat_completion(conversations, model="judge-7b"):
            ...         print(index, token)
        """
        given, params = arguments_of(BatchStreamOptions, options)
        prepare = preparer(CHAT, model, params, **given)
        return self._runtime.stream_many(prepare, model, batch_items("batch_messages", batch_messages), given)

    async def score(self, prompt: Any, response: str = DEFAULT, *, model: str, **options: Unpack[CallOptions]) -> RewardScore:
        """Score one response with a reward model.

        Calls with the same model and parameters share a request if they are queued at the same time and the server accepts lists.

        Args:
            prompt: the prompt, as a text or messages. If ``response`` is not given, ``prompt`` is the whole item: a conversation whose last
                message is scored, a text ready for the model, or a dict with ``prompt``, ``response`` and optionally ``label``.
            response: the response to score.
            model, options: as in :meth:`chat_completion`.

        Returns:
            The score. It is a float, and its ``attributes`` hold the other numbers that the server returned.

        Raises:
            RequestError: the request failed; see its subclasses. A missing or non-numeric score raises ``InvalidResponse`` and never counts
                as 0.0. A prompt or response that is None raises ``BadRequest``, and nothing is sent.
            Rejected, NoEndpoint, ConfigError: as in :meth:`chat_completion`.

        Example:
            >>> async def reward(client, prompt, response):
            ...     return await client.score(prompt, response, model="rm-7b")
        """
        item = prompt if response is DEFAULT else (prompt, response)
        return cast("RewardScore", await self._merged_one(SCORE, model, item, options))

    async def batch_score(
        self, pairs: Iterable[Any] | AsyncIterable[Any], model: str, **options: Unpack[BatchOptions]
    ) -> BatchResult[RewardScore]:
        """Score many responses with a reward model.

        The responses are merged into requests that are as large as the servers accept and small enough to keep all endpoints busy.

        Args:
            pairs: a list, an iterator or an async iterator of ``(prompt, response)`` tuples, conversations, texts ready for the model, or
                dicts, as in :meth:`score`. The input is read only as fast as requests are sent.
            model, options: as in :meth:`batch_chat_completion`, as are the results and the errors. An item that fails does not affect the
                other items of its request.

        Example:
            >>> async def rewards(client, prompts, responses):
            ...     batch = await client.batch_score(zip(prompts, responses), model="rm-7b")
            ...     return batch.scores(default=None)
        """
        return await self._merged_many(SCORE, model, "pairs", pairs, options)

    async def classify(self, prompt: Any, response: str = DEFAULT, *, model: str, **options: Unpack[CallOptions]) -> dict[str, float]:
        """Classify one item, and return a mapping from label to probability. The arguments and errors are the same as for :meth:`score`."""
        item = prompt if response is DEFAULT else (prompt, response)
        return cast("dict[str, float]", await self._merged_one(CLASSIFY, model, item, options))

    async def batch_classify(
        self, items: Iterable[Any] | AsyncIterable[Any], model: str, **options: Unpack[BatchOptions]
    ) -> BatchResult[dict[str, float]]:
        """Classify many items.

        The result of an item is a mapping from label to probability. The arguments and errors are the same as for :meth:`batch_score`.
        """
        return await self._merged_many(CLASSIFY, model, "items", items, options)

    async def rerank(self, query: str, documents: Sequence[str], model: str, **options: Unpack[CallOptions]) -> list[float]:
        """Score how well each document answers the query.

        All documents are sent in one request, or in several requests if the server's limits require it. The arguments
        ``model`` and ``options``, and the errors, are the same as for :meth:`score`.

        Returns:
            One score per document, in the order of ``documents``.
        """
        if isinstance(documents, str | Mapping) or not isinstance(documents, Sequence):
            raise ConfigError(f"documents must be a list of texts, not a {type(documents).__name__}")
        given, params = arguments_of(CallOptions, options)
        spec = MergeSpec(RERANK, model, {**params, "query": query}, **given)
        scheduling = self._runtime.request_options(given)
        return [result.value for result in await self._runtime.merged(spec, spec.calls("documents", documents), scheduling)]

    async def decide(
        self,
        input: str | Sequence[Mapping[str, Any]],  # noqa: A002 - the API's name
        questions: Sequence[Question],
        *,
        model: str,
        min_label_mass: float = MIN_LABEL_MASS,
        **options: Unpack[ChatOptions],
    ) -> Decision:
        """Ask typed questions about one input. Each answer is a probability for every option.

        All questions are sent in one request. If the server takes fewer questions, several requests are sent at the same time. The
        endpoints may have different APIs. ``Endpoint(decisions=...)`` sets the API of an endpoint. Without this setting, a few small
        requests before the first call for a model find out the API.

        Args:
            input: what the questions are about: a text, or messages with texts.
            questions: :class:`YesNo`, :class:`Score` and :class:`Choice`; at least one.
            model: name of the model; selects the route.
            min_label_mass: minimum total probability (0 to 1) of all options of a question. An answer with a lower one is an error, because
                the model would have written something else. An answer whose server does not report this probability is not compared.
            options: see :class:`~qreward.options.ChatOptions`. Any other name, such as ``prompt_cache_key``, becomes a member of the JSON
                body.

        Returns:
            The answers in the order of the questions. A question that was refused or failed is an answer with an error.

        Raises:
            RequestError: no question was answered; see its subclasses. If no endpoint of the route takes a question, the error is a
                ``BadRequest``.
            Rejected, NoEndpoint, ConfigError: as in :meth:`chat_completion`.

        Example:
            >>> from qreward import Score, YesNo
            >>> async def judge(client, text):
            ...     questions = [YesNo("It is true."), Score("How clear is it?", levels=["unclear", "readable", "clear"])]
            ...     decision = await client.decide(text, questions, model="judge-7b")
            ...     return decision[0].probability, decision[1].score
        """
        given, params = arguments_of(ChatOptions, options)
        call = decision_preparer(self._runtime.dialects, given, params, model, min_label_mass)((input, questions))
        return await self._runtime.decide(call, self._runtime.request_options(given))

    async def batch_decide(
        self,
        inputs: Iterable[Any] | AsyncIterable[Any],
        questions: Sequence[Question] | None = None,
        *,
        model: str,
        min_label_mass: float = MIN_LABEL_MASS,
        **options: Unpack[ChatBatchOptions],
    ) -> BatchResult[Decision]:
        """Ask typed questions about many inputs, distributed over all endpoints of the route.

        Args:
            inputs: a list, an iterator or an async iterator of inputs as in :meth:`decide`. If ``questions`` is not given, each item is a
                pair ``(input, questions)``. ``inputs`` is read only as fast as its items are sent.
            questions: the questions about every input; None if each item has its own questions.
            model: name of the model; selects the route.
            min_label_mass: as in :meth:`decide`.
            options: as in :meth:`batch_chat_completion`, as are the errors.

        Returns:
            Results in the order of the input. An item is a ``Result`` with an error if none of its questions was answered.

        Example:
            >>> from qreward import YesNo
            >>> async def correct(client, texts):
            ...     batch = await client.batch_decide(texts, [YesNo("The text is correct.")], model="judge-7b")
            ...     return [result.value[0].probability if result.ok else None for result in batch]
        """
        given, params = arguments_of(ChatBatchOptions, options)
        prepare = decision_preparer(self._runtime.dialects, given, params, model, min_label_mass, questions)
        return await self._runtime.decide_many(prepare, model, batch_items("inputs", inputs), given)

    async def embeddings(
        self,
        input: str | Iterable[Any],  # noqa: A002 - the API's name
        model: str,
        **options: Unpack[CallOptions],
    ) -> CreateEmbeddingResponse:
        """Create embeddings of one input: a text, a list of texts, or token ids.

        Calls with the same parameters share a request if they are queued at the same time. Each call returns its own response, as if the
        call had been sent alone. The other arguments and the errors are the same as for :meth:`chat_completion`.
        """
        return cast("CreateEmbeddingResponse", await self._merged_one(None, model, input, options))

    async def batch_embeddings(
        self, batch_input: Iterable[Any] | AsyncIterable[Any], model: str, **options: Unpack[BatchOptions]
    ) -> BatchResult[CreateEmbeddingResponse]:
        """Create embeddings of many inputs, merged into shared requests.

        Each result is the response to one item of ``batch_input``. The other arguments and the errors are the same as for
        :meth:`batch_chat_completion`.
        """
        return await self._merged_many(None, model, "batch_input", batch_input, options)

    async def text_completion(self, prompt: str | Iterable[int], model: str, **options: Unpack[CallOptions]) -> list[CompletionChoice]:
        """Complete a prompt with the legacy route ``/completions``, which accepts lists.

        Calls with the same parameters share a request if they are queued at the same time. ``prompt`` is a text or its token ids. The
        result are ``n`` choices (1 by default) as openai's ``CompletionChoice``, without token usage, which :meth:`batch_text_completion`
        returns in ``Result.usage``. The other arguments and the errors are the same as for :meth:`chat_completion`.
        """
        return cast("list[CompletionChoice]", await self._merged_one(COMPLETE, model, prompt, options))

    async def batch_text_completion(
        self, prompts: Iterable[Any] | AsyncIterable[Any], model: str, **options: Unpack[BatchOptions]
    ) -> BatchResult[list[CompletionChoice]]:
        """Complete many prompts as :meth:`text_completion` does, merged into shared requests.

        The other arguments and the errors are the same as for :meth:`batch_chat_completion`.
        """
        return await self._merged_many(COMPLETE, model, "prompts", prompts, options)

    async def moderation(
        self,
        input: str | list[Any],  # noqa: A002 - the API's name
        model: str,
        **options: Unpack[CallOptions],
    ) -> Moderation:
        """Check whether a text or a list of parts should be flagged. The result is openai's ``Moderation``.

        The other arguments and the errors are the same as for :meth:`text_completion`.
        """
        return cast("Moderation", await self._merged_one(MODERATE, model, input, options))

    async def batch_moderation(
        self, inputs: Iterable[Any] | AsyncIterable[Any], model: str, **options: Unpack[BatchOptions]
    ) -> BatchResult[Moderation]:
        """Check many inputs as :meth:`moderation` does, merged into shared requests.

        The other arguments and the errors are the same as for :meth:`batch_chat_completion`.
        """
        return await self._merged_many(MODERATE, model, "inputs", inputs, options)

    async def run(
        self, source: Inputs, output: str | Path, *, scorer: AnyScorer | None = None, **options: Unpack[BulkOptions]
    ) -> BulkReport:
        """Send the requests of files, and write the results to a file. After an interruption, the same call continues where it stopped.

        Results are kept in a journal beside the output (``<output>.journal``) as they arrive. After a crash or an interruption, only
        requests that were in flight may be sent again.

        Args:
            source: paths and globs of ``.jsonl``, ``.csv``, ``.tsv``, ``.parquet`` or ``.gz`` files, ``-`` for standard input, or
                an iterable of mappings. A line has the format of OpenAI's Batch API, or has ``messages`` or ``prompt``.
            output: file of the results, in the format of OpenAI's Batch API: ``.jsonl`` or ``.jsonl.gz``. The file is written when all
                lines are done. Failed lines are in ``<output>.failed.jsonl``, where ``<output>`` is the path, without its ending
                ``.jsonl``.
            scorer: a judge, reward model or cascade. With a scorer, each line is an item to score, and its result is a verdict. A run
                cannot be continued with another scorer or with other settings of the scorer.
            options: see :class:`~qreward.bulk.requests.BulkSettings`.

        Returns:
            A report of the run. ``report.reason`` says why the run stopped before the end, and is None if everything is done.

        Raises:
            ConfigError: an argument is invalid, another run writes to the same output, or the input or the settings have changed.

        Example:
            >>> async def judge_file(client):
            ...     report = await client.run("requests.jsonl", "results.jsonl", max_cost=20)
            ...     print(report)
        """
        from qreward.bulk.run import run_bulk  # noqa: PLC0415 - most programs run no bulk

        return await run_bulk(self, source, output, options, scorer=scorer)

    # an operation of None means embeddings

    async def _merged_one(self, operation: Operation | None, model: str, item: Any, options: Mapping[str, Any]) -> Any:
        given, params = arguments_of(CallOptions, options)
        spec = EmbeddingsSpec(model, params, **given) if operation is None else MergeSpec(operation, model, params, **given)
        (result,) = await self._runtime.merged(spec, [spec.call(item)], self._runtime.request_options(given))
        return result.value

    async def _merged_many(
        self, operation: Operation | None, model: str, name: str, items: Items, options: Mapping[str, Any]
    ) -> BatchResult[Any]:
        given, params = arguments_of(BatchOptions, options)
        spec = EmbeddingsSpec(model, params, **given) if operation is None else MergeSpec(operation, model, params, **given)
        return await self._runtime.merged_many(spec, batch_items(name, items), given)

    # changing endpoints and routes

    def register_model_route(
        self,
        pattern: str,
        endpoints: Iterable[str],
        *,
        strategy: LoadBalanceStrategy | str = LoadBalanceStrategy.EXPECTED_FINISH,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Add a route, or replace the route with the same pattern.

        A model uses the route with its exact name. If there is no such route, it uses the route with the most specific glob that matches.

        Args:
            pattern: name of a model, or a glob.
            endpoints: names of the endpoints that serve the matching models.
            strategy: how an endpoint is chosen; see :class:`~qreward.settings.policies.LoadBalanceStrategy`.
            weights: endpoint name -> weight; see :class:`~qreward.settings.policies.Route`.

        Raises:
            ConfigError: the pattern is invalid, an endpoint is unknown, or a weight names an endpoint that is not listed.
        """
        if isinstance(endpoints, str):
            raise ConfigError(f"endpoints must be a list of names, such as [{endpoints!r}]")
        chosen = cast("LoadBalanceStrategy", strategy)  # ``Route`` also accepts a string, and checks it
        route = Route(pattern=pattern, endpoints=tuple(endpoints), strategy=chosen, weights=dict(weights or {}))
        self._runtime.change(self._runtime.fleet.register, route)

    def list_routes(self) -> list[Route]:
        """Return all routes in the order in which they are matched, including the routes that come from the endpoints' ``models``."""
        return self._runtime.fleet.routes()

    def add_endpoint(self, endpoint: Endpoint | Mapping[str, Any] | str) -> None:
        """Add an endpoint. Requests that are already queued for its models can use it immediately.

        Raises ``ConfigError`` if a setting is invalid, or another endpoint has the same name.
        """
        self._runtime.change(self._runtime.fleet.add, endpoint_of(endpoint))

    def remove_endpoint(self, name: str) -> None:
        """Remove an endpoint.

        Requests in flight at the endpoint are finished. Then its connections are closed. Queued requests go to other endpoints. If there
        are no other endpoints, queued requests fail with ``NoEndpoint``. Raises ``ConfigError`` if no endpoint has this name.
        """
        self._runtime.change(self._runtime.fleet.remove, name)

    def reload(self, config: str | Path | Mapping[str, Any] | ClientConfig) -> frozenset[str]:
        """Replace the configuration while the client is in use.

        Args:
            config: path of a file, a mapping of settings, or a ``ClientConfig``.

        Returns:
            Names of the endpoints that were added, removed or changed, names of the settings that changed, and ``"routes"`` if a route
            changed.

        Raises:
            ConfigError: the configuration is invalid. Nothing is changed.
        """
        return self._runtime.reload(load_config(config))

    def mark_unhealthy(self, name: str) -> None:
        """Send no requests to an endpoint until :meth:`mark_healthy` is called. Raises ``ConfigError`` for an unknown name."""
        self._runtime.fleet.mark(name, down=True)

    def mark_healthy(self, name: str) -> None:
        """Bring an endpoint back into service after :meth:`mark_unhealthy` or the circuit breaker took it out, and clear its failures."""
        self._runtime.fleet.mark(name, down=False)

    def pause(self, endpoint: str | None = None, *, reason: str = "") -> None:
        """Send nothing new until :meth:`resume` is called. Requests in flight are finished; requests that wait go on waiting.

        Timeouts go on: a single call that waits longer than its timeout fails with ``RequestTimeout``. Pausing twice is pausing once.

        Args:
            endpoint: name of the endpoint that is paused, or None for all endpoints, also those that are added later.
            reason: shown wherever it is said why requests wait.
        """
        self._runtime.fleet.hold(endpoint, f"paused: {reason}" if reason else "paused")

    def resume(self, endpoint: str | None = None) -> None:
        """End the pause of an endpoint, or of all endpoints. Raises ``ConfigError`` for an unknown name."""
        self._runtime.fleet.hold(endpoint, "")

    @property
    def config(self) -> ClientConfig:
        """The current configuration, including changes made since the client was created."""
        return self._runtime.config

    def stats(self) -> FleetStats:
        """Return the counts and latencies of each endpoint since the client was created, and the endpoint's current state.

        Latencies cover about the last thousand responses of an endpoint.
        """
        now = self._runtime.clock()
        stats = FleetStats((source.name, stats_of(source, now)) for source in self._runtime.fleet.sources())
        stats.why = tuple(why for why in self.explain() if why.is_stuck)
        return stats

    def explain(self, model: str | None = None) -> list[Explanation]:
        """Return why requests wait, in any thread: one explanation for each route with work, or that of the route of ``model``.

        Example:
            >>> async def ask(client):
            ...     for why in client.explain():
            ...         print(why.code, why)  # rate_limit 42 items wait for judge-7b: key-1 is at its limit of 60 requests a minute
        """
        return self._runtime.explain(model)

    def snapshot(self) -> Snapshot:
        """Return the state of the client as one document with a version. Works in any thread, also if the event loop is blocked."""
        return self._runtime.look.take()

    def live(self) -> LiveView:
        """Show this client in ``qreward top``, ``qreward ps`` and ``qreward ctl`` of the same user, and as a table in a notebook.

        The environment variable ``QREWARD_LIVE=1`` shows all clients of a process. Raises ``ConfigError`` if the directory of the sockets
        cannot be used.

        Example:
            >>> def cell(client):
            ...     return client.live()  # as the last line of a cell: the table is updated once a second
        """
        from qreward.live.channel import LiveView  # noqa: PLC0415 - most programs show themselves to nobody

        return LiveView(self._runtime)

    def trace(self, path: str | Path) -> Trace:
        """Record the attempts from now on, as Chrome trace JSON for https://ui.perfetto.dev: a lane for each slot of an endpoint.

        Raises ``ConfigError`` if the file cannot be written.

        Example:
            >>> async def ask(client, conversations):
            ...     with client.trace("trace.json"):
            ...         return await client.batch_chat_completion(conversations, model="judge-7b")
        """
        from qreward.live.trace import Trace  # noqa: PLC0415 - most programs record no trace

        return Trace(self._runtime.engine, path)

    async def aclose(self) -> None:
        """Close all connections and fail unfinished requests with ``ClientClosed``. The client cannot be used afterwards."""
        await self._runtime.aclose()

    if not TYPE_CHECKING:  # type checkers must report ``with`` as an error

        def __enter__(self) -> None:
            raise TypeError("QRewardClient is asynchronous: use `async with`, or SyncQRewardClient with `with`")

        __exit__ = __enter__

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._from, (self.config, self._runtime.telemetry)

    def __repr__(self) -> str:
        return f"<QRewardClient {', '.join(map(repr, self._runtime.fleet.sources()))}>"


show_options(QRewardClient)


def __getattr__(name: str) -> Any:
    from qreward.compat import old_name  # noqa: PLC0415 - for programs written for QReward 0.1.7 only

    return old_name(__name__, name)
