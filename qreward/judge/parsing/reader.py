"""Finds the verdict in an answer that is not one JSON object: in the form that was asked for, or in a sentence that is the verdict and
nothing else. No other sentence may contradict or revise it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from qreward.judge.parsing.forms import Form
from qreward.judge.parsing.schema import VerdictSchema
from qreward.judge.parsing.text import (
    ANY_NUMBER,
    DIGITS,
    HEADS_SPEECH,
    NAMES_ANOTHER,
    OBJECT,
    PERSON,
    SAYS,
    SCORE,
    VALUE,
    WIDE,
    Sentence,
    Unreadable,
    any_word,
    choice_of,
    is_level,
    number_of,
    own_words,
    phrases,
    plain_number,
    score_of,
    sentences,
    spans_scale,
    spellings,
    vocabulary,
)

_TASK_WORDS = frozenset({"answer", "result", "total", "conclusion", "output", "solution", "choice"})
"""Labels that may also name the result of the task. These labels never introduce a verdict, even if the deciding field has such a name."""
_LEAD = r"(?:(?:my|the|so|thus|therefore|hence|and|here is|here['\u2019]s|overall|final)[ ,]+){0,5}"
_LEADS = re.compile(_LEAD, re.IGNORECASE)
_SPAN = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_ENDS = (
    rf"(?:(?:on )?(?:a )?(?:scale )?(?:of |from )?(?P<low>{_SPAN})(?: ?\([^()\d]{{1,30}}\))? ?(?:-|\u2013|to) ?|out of )(?P<high>{_SPAN})"
)
_RANGE = re.sub(r"P<\w+>", ":", rf"(?: ?[(\[]{_ENDS}(?: points?| scale)?[)\]])?")
_BEFORE_SCALE = re.compile(rf"^{_LEAD}$|\b(?:on|using|with|in) (?:an?|the) $", re.IGNORECASE)
_CHANGE = re.compile(r"[^(\[]*\bfrom ", re.IGNORECASE)
"""The beginning of a range that is a change, as in "from 10 to 8", if its end is the lower number."""
_NAMED = re.compile(
    rf"(?<![\w.-])(?:(?P<low>{_SPAN}) ?(?:-|\u2013|to) ?)?(?P<high>{_SPAN})(?P<points>[ -]points?)?(?P<scale>[ -]scale)\b", re.IGNORECASE
)
"""A scale whose name begins with its ends, such as "a 1-10 scale"."""
_TOP = re.compile(
    rf"^[(\[]?{_LEAD}(?:out of|(?:{phrases('tops')}):?) ?(?P<high>{_SPAN})(?: points?(?=,)|(?: points?)?[)\]]?[.:]?$)", re.IGNORECASE
)
"""A sentence that names the highest score, such as "Points available: 5"."""
_LOOKED_BACK = 500  # characters, so that the time to read a long sentence is linear
_FRACTION = re.compile(rf"(?<![\w./,-])(?P<number>{DIGITS}) ?(?:/|out of) ?(?P<top>{_SPAN})(?![\w/]|[.,]\d)", re.IGNORECASE)
_COUNTED = re.compile(rf" (?!(?:{phrases('after_rating')})\b)[^\W\d]", re.IGNORECASE)
"""What follows a fraction of things, such as "7 out of 8 claims", and none that is a rating."""
_SIGNED = re.compile(r"(?<![\w-])(?:[-\u2212]|[<~\u2248\u2264\u2265\u00b1] ?)$")
_SEPARATOR = r"(?: ?(?:[:=\uff1a]|->|=>|\u2192|[-\u2013\u2014](?= ))(?: is)? ?| (?:is|=):? ?| (?=\[\[|[0-9][0-9.,]* ?/)|(?<=\[result\]) ?)"
_SCORE_LABELS, _CHOICE_LABELS = phrases("score_labels"), phrases("choice_labels")
_JUDGING = rf"{vocabulary('judging')}|\b(?:i|we)\b.{{0,12}}\bgive\b|\[\["
_ASPECT = re.compile(rf"[^\W\d][\w &/-]{{1,40}}: ?{DIGITS} ?/ ?{DIGITS}[.]?")
_WORD = re.compile(r"\w")
_REASON = re.compile(phrases("reason"), re.IGNORECASE)
"""A pattern of the labels that may begin a text after the verdict."""
_TAKES_BACK = any_word(vocabulary("takes_back"), r"^no\b|~~")
_REVISES = any_word(vocabulary("revises"))
_SUBJECT = any_word(vocabulary("subject"))
_COURTESY = re.compile(phrases("courtesy"), re.IGNORECASE)
"""A friendly sentence, which takes nothing back."""
_BETTER = rf"(?<![A-Za-z])(?P<better>(?-i:[AB]))(?![A-Za-z])[^,.;，。、AB]{{0,30}}(?:{vocabulary('better')})"
_LETTER = re.compile(r"(?<![\w'\u2019])[AB](?!\w)")
_DENIES = re.compile(phrases("denies"), re.IGNORECASE)
_CONCEDES = re.compile(phrases("concedes"), re.IGNORECASE)
_PAIR_NOUN = r"(?:(?:the )?(?:response|assistant|answer|option|candidate|model|output) )?"

_TASK = any_word(vocabulary("task"), "=")
_COMPUTES = any_word(vocabulary("computes"))
_NEGATION = any_word(vocabulary("negation"))
_LOSES = any_word(vocabulary("loses"))
_IS_BETTER = any_word(vocabulary("is_better"))
_SUPPOSED = any_word(vocabulary("supposed"))
_NOT_OWN = any_word(
    *map(vocabulary, ("condition", "not_quite", "judged_text", "shows")),
    r"^(?:were|had|wäre|hätte)\b|e\.g\.|i\.e\.|\b(?:vs|cf|viz)\.|\.\.\.|…",
)
_RATING = r"(?:rat(?:e|ed|ing)|scored?|grade|verdict|decision|評価|评分|평가|оцен|bewert|not(?:e|er)|calific|puntu)"
_RATES = re.compile(rf"\b{_RATING}|評価|评分|평가", re.IGNORECASE)
_UNQUOTED = re.compile(
    rf"((?:\b(?:my|final|overall) [^\"“「`:：\n]{{0,30}}?{_RATING}\w*|{_RATING}[^\"“「`:：\n]{{0,60}}(?:{phrases('follows')}))"
    r"(?: is)?[*_]*[:：]?[*_]*)\s*"
    rf"[\"“「`]([^\"”」`\n]{{0,30}}{VALUE}[^{VALUE}]{{1,60}}{VALUE}[*_]*)[\"”」`](?=[*_.。]*\s*\Z)",
    re.IGNORECASE,
)
"""The last words of a judge that quotes the form as it was told: ``I rate the response as follows: "Rating: [[9]]"``."""
_COPULA = rf"(?: ?(?:点|分|점))? ?(?:{phrases('copula')})?"
_AFTER = re.compile(rf"(?: ?(?:/|out of) ?(?P<top>[0-9]+)| points?)?{_COPULA}[)\]*.!。…]*", re.IGNORECASE)
_TIE_GLOSS = re.compile(
    rf"[ ,(:–—-]*(?:for|as|=|is|für|pour|para|за|表示|代表)? ?(?:an? |ein |une |un )?(?:{phrases('tie')})\b[^.!?。\d]{{0,200}}[.!。)]*",
    re.IGNORECASE,
)


class TextReader:
    """Finds the verdict in a text, if there is exactly one verdict. One instance reads all answers with the same schema and form."""

    def __init__(self, schema: VerdictSchema[Any], form: Form) -> None:
        self._schema, self._form, self._scale = schema, form, schema.scale
        field = schema.name
        self._options = dict(form.values) if form.values else None if schema.kind.number else schema.kind.options
        own = "" if not field or _TASK_WORDS.intersection(field.lower().split("_")) else "|" + re.escape(field).replace("_", "[ _]")
        labels = f"(?:{_SCORE_LABELS if self._options is None else _CHOICE_LABELS}{own})"
        self._tie: Any = None
        value = SCORE if self._options is None else self._choices(self._options)
        in_any_case = value.replace("(?-i:", "(?:")  # after a label, "a" is no article
        if form.marked:
            unclear = rf"(?P<unclear>[^{VALUE}]*\d[^{VALUE}]*|[A-Z](?:[<>=]+[A-Z])?)"
            in_form = rf"{VALUE} ?(?:(?:[^\W\d][^\d\n{VALUE}]{{0,20}}: ?)?{in_any_case}|{unclear}) ?{VALUE}"
        else:
            in_form = rf"(?<![^\W_]){form.label}{in_any_case}(?![^\W_]|[.,/]\d)" if form.label else ""
        self._in_form = re.compile(in_form, re.IGNORECASE) if in_form else None
        value = rf"(?:\[?(?P<object>{OBJECT})\]?|(?P<open>\[\[ ?)?{value}(?(open) ?\]\]))[.!\u3002]?"
        in_any_case = value.replace("(?-i:", "(?:")
        self._verdict = re.compile(rf"(?:{_LEAD}{labels}{_RANGE}{_SEPARATOR}|(?=\[\[|\[?{OBJECT})){in_any_case}", re.IGNORECASE)
        concluded = rf"{_LEAD}{phrases('concluded')}{_SEPARATOR}{in_any_case}" if self._options is not None else "(?!)"
        self._concluded = re.compile(concluded, re.IGNORECASE)  # too weak a label for a verdict, but it contradicts one
        self._alone = re.compile(value, re.IGNORECASE)
        self._heading = re.compile(rf"{_LEAD}{labels}{_RANGE} ?[:\uff1a]?", re.IGNORECASE)
        self._judging = re.compile(rf"{_JUDGING}|\b(?:{own[1:] or '(?!)'})\b", re.IGNORECASE)
        low, top = ("(?!)" if self._scale is None else re.escape(f"{end:g}") for end in self._scale or (0, 0))
        self._of_top = re.compile(rf" ?(?:/|out of) ?{top}(?!\w|\.\d)", re.IGNORECASE)
        self._ends = re.compile(
            rf"(?<!\w)(?:{labels} ?[(\[]|(?P<scale>scale)(?: is)? ?[:(\[]? ?|{labels} (?=[^.,;:]{{1,16}}[:=\uff1a]? ?$)){_ENDS}",
            re.IGNORECASE,
        )
        self._span = re.compile(rf"(?<![\w.])(?:0|1|{low}) ?(?:-|\u2013|to|and) ?{top}(?!\w|\.\d)", re.IGNORECASE)

    def read(self, text: str) -> tuple[Any, dict[str, Any] | None]:
        """Return the value of the verdict, and the members of its JSON object; None for words. Raises :class:`Unreadable`."""
        value = self._read_form(text, self._in_form) if self._in_form else None
        if value is not None:
            return value, None
        if self._form.marked and self._form.example is None:  # a pattern of the user
            raise Unreadable("The answer does not have the form that was asked for.")
        return self._read_sentences(text)

    # in the form that was asked for

    def _read_form(self, text: str, in_form: re.Pattern[str]) -> Any:
        """Return the value of the verdict; None if the form does not occur."""
        text = text.replace(VALUE, "").translate(WIDE)
        if self._form.marked:
            text = self._form.marked.sub(lambda value: f"{VALUE}{value[1]}{VALUE}", text)
        own_text, objects = own_words(_UNQUOTED.sub(r"\1 \2", text), self._schema.value_of)
        found = list(sentences(own_text, marked=True))
        hits = [
            (place, match, self._stated(match), _AFTER.fullmatch(match.string, match.end()))
            for place, each in enumerate(found)
            for match in in_form.finditer(each.text)
        ]
        if not hits:
            return None
        place, match, value, plain = hits[-1]
        if isinstance(value, Unreadable):
            raise value
        if plain and plain["top"]:
            number_of(f"{value}/{plain['top']}", self._scale)
        is_tie = self._tie is not None and value == self._tie
        if not plain and not (is_tie and _TIE_GLOSS.fullmatch(match.string, match.end())):
            raise Unreadable("The last verdict in the form that was asked for does not stand at the end of its line.")
        rivals = [(at, ends) for at, _, other, ends in hits if other != value]
        ends_line = plain and (place + 1 == len(found) or found[place + 1].first)
        places = {at for at, *_ in hits}
        if (
            (rivals and (not ends_line or any(at == place or ends for at, ends in rivals)))
            or any(other != value for other, _ in objects)
            or any(self._states_other(words, value) for at, words in enumerate(self._with_headings(found)) if at not in places)
        ):
            raise Unreadable("The answer gives more than one verdict.")
        before, previous = match.string[: match.start()], found[place - 1].text if place else ""
        self._check_scale(before, previous, value)
        if self._prefers_other([before] if place - 1 in places else [previous, before], value):
            raise Unreadable("The words before the verdict prefer another answer.")
        judges = _LEADS.fullmatch(before) or self._judging.search(before) or _RATES.search(before)
        of_task = "boxed" in self._form.name and (_TASK.search(f"{previous}\n{before}") or not judges)  # a solution stands in a box too
        if of_task or not self._is_own(found[place], before, match.string[match.end() :]):
            raise Unreadable("The verdict may be reported or supposed: it must stand on a line of its own.")
        if self._may_be_revised([each.text for each in found[place + 1 :]], value, in_form=True):
            raise Unreadable("What follows the verdict may revise it.")
        return value

    def _is_own(self, sentence: Sentence, before: str, after: str) -> bool:
        if not sentence.own or (self._form.label and not _LEADS.fullmatch(before)):
            return False
        judges = self._judging.search(before) or _RATES.search(before) or _RATES.search(after)
        # a score that is said of another text or person, as in "The response ends: [[10]]"
        is_of_another = self._options is None and not judges and NAMES_ANOTHER.search(before)
        says = [*SAYS.finditer(before)]
        heads = HEADS_SPEECH.match(before)
        clause = re.split(r"[,;:，；、：]| but ", before.rstrip(" :："))[-1]
        return not (
            (says and (not PERSON.search(before) or re.search(r"[:：]", before[says[-1].end() :][:40])))
            or (heads and heads[0][-1] in ":：")
            or ((_SUPPOSED.search(before) or is_of_another) and not PERSON.search(before))
            or _NOT_OWN.search(before)
            or _NEGATION.search(clause)
        )

    def _prefers_other(self, texts: Sequence[str], value: Any) -> bool:
        """Return whether one of the texts says that another answer of a pair than ``value`` is better."""
        return self._tie is not None and any(
            self._stated(made) != value
            and not _DENIES.search(words, 0, made.start())
            and not ((made["worse"] or made["because"]) and _CONCEDES.search(words, 0, made.start()))
            for words in texts
            for made in self._made[-1].finditer(words)
        )

    def _concludes_other(self, words: str, value: Any) -> bool:
        """Return whether a sentence after the verdict comes to another answer of a pair, such as "I would go with B", and to no other."""
        made = self._conclusion.search(words)
        if made is None or self._stated(made) == value or {*_LETTER.findall(words)} != {made["option"] or made["chosen"]}:
            return False
        clause = re.split("[,;:]", words[: made.end()])[-1]
        is_winner = made[0][:2].lower() != "is" or _IS_BETTER.search(clause)  # as in "Despite its errors I would go with B"
        return not (_NEGATION.search(clause) or (_LOSES.search(clause) and not is_winner))

    def _check_scale(self, before: str, previous: str = "", value: float | None = None) -> None:
        """Raise :class:`Unreadable` if the words of a verdict, or the ``previous`` sentence, name another scale than that of the score. The
        previous sentence may be about a scale of the judged text, if its words name this text and not the judge's own score."""
        if self._options is not None:
            return
        of_previous = filter(self._may_be_of_rating, chain(self._ends.finditer(previous), _NAMED.finditer(previous)))
        spans = chain(of_previous, _TOP.finditer(previous), self._ends.finditer(before), _NAMED.finditer(before))
        rates_otherwise = value is not None and any(self._rates_otherwise(words, value) for words in (before, previous))
        if rates_otherwise or any(map(self._is_other_scale, spans)):
            raise Unreadable("The answer names another scale beside its score.")

    def _may_be_of_rating(self, span: re.Match[str]) -> bool:
        before = span.string[max(0, span.start() - _LOOKED_BACK) : span.start()]
        said = max((person.start() for person in PERSON.finditer(before)), default=0)
        of_another = span.re is _NAMED and NAMES_ANOTHER.search(before, said)  # "I see that the response misread the 5-point scale."
        own = any(pattern.search(before) for pattern in (_BEFORE_SCALE, *(() if of_another else (PERSON, self._judging))))
        return own or (span["scale"] is not None and not NAMES_ANOTHER.search(before))

    def _is_other_scale(self, span: re.Match[str]) -> bool:
        ends = span.groupdict()
        low, high = float(ends.get("low") or 0), float(ends["high"])
        is_change = low > high and _CHANGE.match(span[0])
        if not ends.get("scale") and (is_change or is_level(low, high, self._scale)):
            return False
        counts = ends.get("points") and self._scale and high == self._scale[1] - self._scale[0] + 1  # 0 to 4 is a 5-point scale
        return not counts and not spans_scale(low, high, self._scale)

    def _rates_otherwise(self, words: str, value: float) -> bool:
        """Return whether a sentence gives ``value``, perhaps before it was rounded, on another scale, as "I give it 8/10" does an 8 of 100.
        Other fractions may be of anything."""
        highest = self._scale[1] if self._scale else 0.0
        for each in _FRACTION.finditer(words):
            number, top = float(plain_number(each["number"])), float(each["top"])
            agrees = top == highest or (top and highest and abs(number / top - value / highest) <= 0.01)  # 1/2 is 0.5 on a scale up to 1
            if abs(number - value) <= 0.5 and not agrees:
                before = words[max(0, each.start() - _LOOKED_BACK) : each.start()]
                if not _COUNTED.match(words, each.end()) and self._judging.search(before):
                    return True
                if not _WORD.search(words, each.end()):
                    said = [person.start() for person in PERSON.finditer(before)]
                    solves = _TASK.search(before) or _COMPUTES.search(before, *said[-1:])
                    if _BEFORE_SCALE.search(before) or (said and not solves):
                        return True
        return False

    def _states_other(self, words: str, value: Any) -> bool:
        match = self._verdict.fullmatch(words) or self._concluded.fullmatch(words)
        return match is not None and OBJECT not in words and self._stated(match) != value

    # in a sentence

    def _read_sentences(self, text: str) -> tuple[Any, dict[str, Any] | None]:
        own_text, objects = own_words(text.translate(WIDE), self._schema.value_of)
        found = list(sentences(own_text))
        given = iter(objects)
        verdicts: list[tuple[int, Any, dict[str, Any] | None]] = []
        others: list[tuple[int, str]] = []
        for index, ((words, own, _), stated) in enumerate(zip(found, self._with_headings(found), strict=True)):
            mine = [next(given) for _ in range(words.count(OBJECT))]
            match = self._verdict.fullmatch(stated) or (self._alone.fullmatch(words) if len(found) == 1 else None)
            if match and own:
                verdicts.append((index, *(mine[0] if mine else (self._value_in(match), None))))
            else:
                others.append((index, stated))
                verdicts += [(-1, value, None) for value, _ in mine]  # not accepted, but a different verdict conflicts with it
        last, value, members = max(verdicts, key=lambda verdict: verdict[0], default=(-1, None, None))
        if last < 0:
            raise Unreadable("No sentence of the answer is a verdict and nothing else, outside of quotations and reported speech.")
        self._check_scale("", found[last - 1].text if last else "", value)
        if any(other != value for _, other, _ in verdicts) or any(self.differs(words, value) for _, words in others):
            raise Unreadable("The answer gives more than one verdict.")
        if self._may_be_revised([words for at, words in others if at > last], value):
            raise Unreadable('What follows the verdict may revise it: only reasons after "Reason:", without other numbers, may follow.')
        return value, members

    def _with_headings(self, found: Sequence[Sentence]) -> Iterator[str]:
        """Yield the sentences. A value alone below a heading such as "Score" is preceded by this heading."""
        heading = ""
        for words, own, _ in found:
            yield f"{heading}: {words}" if heading and self._alone.fullmatch(words) else words
            heading = words.rstrip(":\uff1a ") if own and self._heading.fullmatch(words) else ""

    def _value_in(self, match: re.Match[str]) -> Any:
        groups = match.groupdict()
        if groups.get("unclear"):
            raise Unreadable("The verdict is none of the values that were asked for.")
        if self._options is not None:
            if groups.get("tied"):
                return self._tie
            if groups.get("worse"):
                return self._values["AB".replace(groups["worse"], "")]
            return choice_of(groups["option"] or groups.get("chosen") or groups["better"], self._values)
        in_marks = groups.get("open") or VALUE in match[0]
        if in_marks and ("," in match["number"] or _SIGNED.search(match.string, 0, match.start())):
            raise Unreadable("The score is not one plain number.")
        self._check_scale(match[0])
        return score_of(match, self._scale)

    def differs(self, words: str, value: Any) -> bool:
        """Return whether a sentence may contain a verdict other than ``value``. A score of an aspect ("Style: 6/10") is not a verdict."""
        if self._options is not None:
            made = [match for pattern in self._made for match in pattern.finditer(words)]
            made += self._any.finditer(words) if self._judging.search(words) else []
            return any(self._stated(match) != value for match in made if match[0])
        if not re.search(r"\d", words):
            return False
        if self._judging.search(words):
            return self._has_other_number(words, value)
        tops = [] if _ASPECT.fullmatch(words) else self._of_top.finditer(words)
        return any(self._has_other_number(words[max(0, top.start() - 20) : top.start()].rpartition(" ")[2], value) for top in tops)

    def _stated(self, match: re.Match[str]) -> Any:
        """Return the value in a match, or what is wrong with it, which is equal to no value."""
        try:
            return self._value_in(match)
        except Unreadable as error:
            return error

    def _may_be_revised(self, after: Sequence[str], value: Any, *, in_form: bool = False) -> bool:
        """Return whether a text after the verdict may revise it. Reasons after "Reason:" do not; ``in_form``, without this label."""
        rest = [words for words in after if _WORD.search(words) and not _COURTESY.fullmatch(words)]
        label = _REASON.match(rest[0]) if rest else None  # "My reason for the score:" revises nothing
        if label:
            rest[0] = rest[0][label.end() :].lstrip()
        elif rest and not (in_form and _SUBJECT.search(rest[0])):
            return True
        text = "\n".join(rest)
        if _TAKES_BACK.search(text):
            return True
        if in_form and self._tie is not None:
            return self._prefers_other(rest, value) or any(self._concludes_other(words, value) for words in rest)
        return bool(_REVISES.search(text) or self._judging.search(text)) or (
            self._options is None and any(self._has_other_number(words, value) for words in rest)
        )

    def _has_other_number(self, words: str, value: float) -> bool:
        words = self._of_top.sub(" ", self._span.sub(" ", words))
        return any(float(plain_number(number)) != value for number in ANY_NUMBER.findall(words))

    def _choices(self, options: Mapping[str, Any]) -> str:
        """Return the pattern of a choice, and compile those of sentences that make one, because "A" occurs in every text."""
        pair = {"A", "B", "tie"} <= options.keys()
        self._tie = options.get("tie") if pair else None
        options = self._values = spellings(options)
        words = sorted(options, key=len, reverse=True)
        one = "|".join(f"(?-i:{re.escape(word)})" if len(word) == 1 else re.escape(word) for word in words) or "(?!)"
        noun = _PAIR_NOUN if pair else ""
        self._any = re.compile(rf"(?<![\w<>=])(?P<option>{one})(?![\w<>=])", re.IGNORECASE)
        self._made = [
            re.compile(rf"^{noun}(?P<option>{one})(?= ?(?:$|[,.;:!?\u2014\u2013]| - ))", re.IGNORECASE),
            re.compile(rf"[,;:.\u2013\u2014] ?(?P<option>{one})[.!]?$", re.IGNORECASE),
        ]
        if pair:
            better = r"(?:is|was|seems)(?: \w+){0,3} (?:better|best|preferred|preferable|superior|stronger|winner)"
            gives = (
                r"(?:g[ai]ves?|provide[sd]|offer(?:s|ed)|ha[sd]|wrote) the (?:\w+ ){0,2}(?:better|best|stronger) (?:response|answer|one)"
            )
            beats = rf"(?:beats|outperforms|surpasses|outshines|edges out) {noun}(?-i:[AB])"
            because = "(?:because|since|as (?:it|they))"
            of_its_own = r"(?:['\u2019]s (?:response|answer|output))?"
            worse = rf"\b(?P<worse>(?-i:[AB])){of_its_own} (?:is|was|seems)(?: (?!(?:{phrases('hardly')})\b)\w+){{0,2}} worse"
            of_aspect = rf"(?! {phrases('of_aspect')}\b)"
            worse += rf"(?= than {noun}(?-i:[AB])\b{of_aspect}| overall{of_aspect}| {because}\b|[.!;:]|,(?! {phrases('but')}\b)|$)"
            wins = rf"\b(?P<option>(?-i:[AB])){of_its_own} (?:(?:should )?wins?|{better}|{gives}|{beats})"
            chosen = rf"\b(?:prefer|choose|pick|favou?r|(?:choice|winner|preference) is) {noun}(?P<chosen>(?-i:[AB]))\b(?!['\u2019])"
            self._made.append(
                re.compile(
                    rf"{wins}(?= than\b| overall|(?P<because> {because}\b)|[.!,;:]|$)|{worse}|{chosen}|"
                    rf"\b(?P<tied>{phrases('tied')})(?![\w-])|{_BETTER}",
                    re.IGNORECASE,
                )
            )
            settles = rf"(?:\bis|{phrases('goes_with')}) (?:now |still |clearly |therefore )?"
            self._conclusion = re.compile(
                rf"^(?P<option>(?-i:[AB]))[.!]*$|{settles}{noun}(?P<chosen>(?-i:[AB]))(?= ?(?:[.!,;:]|$))", re.IGNORECASE
            )
        return rf"{noun}(?P<option>{one})"
