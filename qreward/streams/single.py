"""One streamed answer, as a caller holds it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Any, cast

from qreward.engine.outlet import Outlet, StreamRestarted
from qreward.results import Result
from qreward.streams.held import Held
from qreward.streams.reader import Reader

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk


class Stream(Held[Outlet]):
    """A chat completion that comes token by token: what ``QRewardClient.stream_chat_completion`` returns.

    Nothing is sent before it is iterated, entered, or awaited; it then belongs to the running event loop, and is read by one
    task at a time. Leaving it early, by ``break``, by an error, by :meth:`aclose`, by the end of ``async with``, or by letting go of
    it, closes the request upstream at once, and its slot is free for others. If it is read slowly, the server is, too.

    Until the first token a failure is not seen here: the request goes to another endpoint. After it, an error comes as
    :class:`~qreward.errors.StreamInterrupted` when all that had come is read; with ``on_interrupt="restart"`` the answer begins anew
    instead, which :meth:`events` tells of.

    ``async for`` over it gives texts, none of them empty. ``await stream`` waits for the first token and returns the stream.

    Example:
        >>> async def show(client, messages):
        ...     stream = client.stream_chat_completion(messages, model="judge-7b")
        ...     async for token in stream:
        ...         print(token, end="")
        ...     return (await stream.final()).usage
    """

    __slots__ = ()

    # reading

    def __aiter__(self) -> AsyncIterator[str]:
        self._refuse_restarts("final()")
        return Reader(self, _text)

    def chunks(self) -> AsyncIterator[ChatCompletionChunk]:
        """All chunks as openai's objects, those without text included: tool calls, logprobs, usage.

        Raises:
            ConfigError: the stream may begin anew, which chunks do not tell: see :meth:`events`.
        """
        self._refuse_restarts("final()")
        return Reader(self, lambda chunk: cast("ChatCompletionChunk", chunk.build()))

    def events(self) -> AsyncIterator[str | StreamRestarted]:
        """Texts, and with ``on_interrupt="restart"`` a ``StreamRestarted`` where all texts before it are void."""
        return Reader(self, _text_or_restart)

    async def final(self) -> ChatCompletion:
        """The whole answer, with its usage if the server told it. What was not read yet is not given out any more.

        Raises:
            RequestError: and others, as :meth:`QRewardClient.chat_completion`; ``StreamInterrupted`` as well after the first token,
                and if the stream was left early.
        """
        result: Result[ChatCompletion] = await self._ended()
        return result.value

    # what is known of it

    @property
    def text(self) -> str:
        """What has come so far, read or not; since the last restart."""
        return "" if self._source is None else self._source.text()

    @property
    def result(self) -> Result[ChatCompletion] | None:
        """How it ended, with endpoint, attempts and times; None while it has not, and if it was left early."""
        return None if self._source is None else self._source.result

    # coming and going

    def __await__(self) -> Generator[Any, Any, Stream]:
        return self._begun().__await__()

    async def _begun(self) -> Stream:
        outlet = self._open()
        try:
            await outlet.begins()
        except BaseException:
            self._drop()
            raise
        if outlet.result is not None and outlet.result.error is not None and not outlet.begun:
            raise outlet.result.error
        return self

    def __repr__(self) -> str:
        outlet = self._source
        state = "not begun" if outlet is None else repr(outlet.result) if outlet.result else "left" if outlet.left else "under way"
        return f"<Stream {state}>"


def _text(chunk: Any) -> str | None:
    return chunk.text or None


def _text_or_restart(item: Any) -> str | StreamRestarted | None:
    return item if isinstance(item, StreamRestarted) else item.text or None
