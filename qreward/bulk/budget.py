"""The budget of a bulk run: before a request is sent, its maximum cost is reserved, so the run never exceeds its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from qreward.codecs.base import WireRequest
from qreward.codecs.chat import PassthroughCodec
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.errors import ConfigError
from qreward.results import AttemptRecord, Usage, dollars

MESSAGE_TOKENS = 16
"""Maximum number of tokens that a chat template is assumed to add to a message. The template of OpenAI adds 3 and the template of Llama 3
adds 5. Names and special tokens can double these numbers."""

MEDIA = ("image_url", "image", "input_image", "audio_url", "input_audio", "video_url", "video", "file")
MEDIA_TOKENS = 16_384
"""Number of tokens that are counted for an image, a sound or a video. The number is the limit of Qwen2-VL for one image. A long video
can use more tokens."""
TEXTS = ("text", "input_text", "function")
WITHOUT_OUTPUT = ("score", "rerank", "classify", "pooling", "embed", "embeddings", "moderations", "reward", "similarity", "tokenize")
"""Last parts of the URL paths of requests that generate no text."""
FREE = ("ok", "overloaded", "unreachable", "cancelled", "quota", "unsuitable", "unsendable", "local")
"""Outcomes of attempts that add nothing to the cost of a line: the server did not process the attempt, or the usage of the line's answer
includes its cost."""
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")
COPIES = ("n", "best_of")

UNPAID = 16
"""Maximum number of lines that a scorer with a budget has at once until one of its lines has cost something."""

Price = tuple[float, float]  # US dollars for a million prompt tokens and a million completion tokens


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """An amount of tokens and its cost in US dollars (0.0 if no endpoint has a price)."""

    tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.tokens + other.tokens, self.cost + other.cost)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.tokens - other.tokens, self.cost - other.cost)

    def __mul__(self, times: int) -> Spent:
        return Spent(self.tokens * times, self.cost * times)


NOTHING = Spent()


class SpendingLimit:
    """The limits of a run in US dollars and in tokens, and the amounts that are spent, also by earlier runs, and reserved."""

    def __init__(self, max_cost: float | None = None, max_tokens: int | None = None, spent: Spent = NOTHING, paid: int = 0) -> None:
        self._max_cost, self._max_tokens = max_cost, max_tokens
        self.spent, self._reserved = spent, NOTHING
        self._paid, self._free = paid, 0  # number of lines that have cost something, also in earlier runs, and nothing

    @property
    def is_idle(self) -> bool:
        """True if nothing is reserved. If a request exceeds a limit while nothing is reserved, it will always exceed the limit."""
        return self._reserved.tokens <= 0

    def affords(self, more: Spent) -> bool:
        """Return whether what is spent and ``more`` are within the limits. Nothing is reserved."""
        total = self.spent + more
        limits = ((total.tokens, self._max_tokens), (total.cost, self._max_cost))
        return all(most is None or spent <= most for spent, most in limits)

    def affords_lines(self, lines: int) -> bool:
        """Return whether this number of lines of a scorer is within the limits, if each costs as much as the mean paid line."""
        if self._paid:
            return self.affords(Spent(self.spent.tokens * lines // self._paid, self.spent.cost * lines / self._paid))
        has_limit = self._max_cost is not None or self._max_tokens is not None
        return not has_limit or lines <= min(1 + self._free, UNPAID)  # about one of so many costs something, and shows what a line costs

    def reserve(self, most: Spent) -> bool:
        """Reserve the maximum cost of a request, and return True. If it could exceed a limit, reserve nothing and return False."""
        if not self.affords(self._reserved + most):
            return False
        self.hold(most)
        return True

    def hold(self, most: Spent) -> None:
        """Reserve the maximum cost of a request that was already sent, even if it exceeds a limit."""
        self._reserved += most

    def __str__(self) -> str:
        limits = (("tokens", self._max_tokens, "tokens"), ("cost", self._max_cost, "dollars"))
        held = [(getattr(self.spent, name), getattr(self._reserved, name), most, unit) for name, most, unit in limits if most is not None]
        return ", ".join(f"{spent:.4g} of {most:g} {unit} spent, {reserved:.4g} held" for spent, reserved, most, unit in held)

    def settle(self, reserved: Spent, spent: Spent) -> None:
        """Replace the reservation for a request with its real cost."""
        self._reserved, self.spent = self._reserved - reserved, self.spent + spent
        self._paid, self._free = self._paid + (spent != NOTHING), self._free + (spent == NOTHING)


def highest(prices: Mapping[str, Price], names: Iterable[str]) -> Price | None:
    """Return the highest prompt price and the highest completion price of the named endpoints; None if none has a price."""
    known = [prices[name] for name in names if name in prices]
    return (max(price[0] for price in known), max(price[1] for price in known)) if known else None


def is_free(attempt: AttemptRecord) -> bool:
    """Return whether an attempt adds nothing to the cost. An unsuitable answer (status 200), such as one with too few choices, does."""
    return attempt.outcome in FREE and not (attempt.outcome == "unsuitable" and attempt.status_code == 200)


def upper_bound(call: WireRequest, price: Price | None) -> Spent:
    """Return the maximum cost of one attempt of a request. Each byte of text counts as a token, because no token is shorter than a byte.
    Raises ``ConfigError`` if the request does not limit its output."""
    output, params = _most_output(call), call.params
    if isinstance(call.codec, PassthroughCodec):  # the inputs are among the parameters
        # a server may repeat each value that is not a list, such as the query, for every item of a list
        longest = max((len(value) for value in params.values() if isinstance(value, list)), default=1) or 1
        prompt = MESSAGE_TOKENS * longest
        prompt += sum(_tokens(value) * (1 if isinstance(value, list) else longest) for value in params.values())
    else:
        prompt = _tokens(call.inputs) + _tokens(params)
    return Spent(prompt + output, 0.0 if price is None else dollars(price, prompt, output))


def _most_output(call: WireRequest) -> int:
    if call.codec is EMBEDDINGS or call.codec.path.rsplit("/", 1)[-1] in WITHOUT_OUTPUT:
        return 0
    for name in (*LIMITS, *COPIES):
        if not isinstance(value := call.params.get(name), int | None):
            raise ConfigError(f"{name} is {value!r}, so its cost has no limit; set {name} to an integer, or leave it out")
    most = max(call.params.get(name) or 0 for name in LIMITS)
    if most <= 0:
        raise ConfigError("it sets no max_tokens, so its cost has no limit; set max_tokens in the line, or for all lines with params")
    prompts = call.params.get("prompt")
    return most * max(1, *(call.params.get(name) or 1 for name in COPIES)) * (len(prompts) if isinstance(prompts, list) else 1)


def _tokens(value: object) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        is_media = str(value.get("type", "text")) not in TEXTS and any(name in value for name in MEDIA)
        return (MEDIA_TOKENS if is_media else MESSAGE_TOKENS) + sum(_tokens(key) + _tokens(each) for key, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return sum(map(_tokens, value))
    return 1


def spent_by(usage: Usage | None, price: Price | None) -> Spent | None:
    """Return the tokens and the cost of a response; None if the server reported no usage."""
    if usage is None or usage.prompt_tokens is None:
        return None
    prompt, completion = usage.prompt_tokens, usage.completion_tokens or 0
    return Spent(prompt + completion, 0.0 if price is None else dollars(price, prompt, completion))
