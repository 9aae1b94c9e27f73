"""The form in which a judge was asked to end its answer, such as ``[[5]]``: how its occurrences in an answer are found."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from qreward.judge.parsing.quotes import VALUE, Unreadable, ValueOf, own_words
from qreward.judge.parsing.text import HEADS_SPEECH, LEAD, PERSON, SAYS, SHOWS, WIDE, Sentence, TextReader, number_of, sentences

_DELIMITED = (
    (re.compile(r".*?\[\[(.+)\]\]", re.DOTALL), r"\[\[ ?([^\[\]\n]{1,60}?) ?\]\]"),
    (re.compile(r".*?\\boxed\{(.+)\}", re.DOTALL), r"\$?\\boxed\{ ?(?:\\text\{)?([^{}\n]{1,60})\}?\}\$?"),
    (re.compile(r".*?<(?P<tag>[A-Za-z][\w-]*)>(.+)</(?P=tag)>", re.DOTALL), r"<{tag}>\s*([^<]{{1,60}}?)\s*</{tag}>"),
)
_LABELLED = re.compile(
    r"(?P<label>.*?)(?P<separator>\s*[:=]?\s*)(?P<value>[0-9][0-9.]*|[AB][<>=]+[AB]|[^\W\d]+)(?:\s*/\s*[0-9]+|[分点점])?[.]?"
)


class Form(NamedTuple):
    """Describes a form."""

    name: str
    marked: re.Pattern[str] | None = None
    label: str = ""
    example: str | None = None
    values: tuple[tuple[str, float], ...] = ()
    reads: Callable[[str], Any] | None = None

    @property
    def is_strict(self) -> bool:
        """True if an answer in no other form is accepted, because the user has written a pattern."""
        return self.marked is not None and self.example is None


def form_of(example: str) -> Form:
    shown = example.strip().translate(WIDE)
    for shape, pattern in _DELIMITED:
        if found := shape.fullmatch(shown):
            tag = re.escape(found.groupdict().get("tag") or "")
            begin, end = found.span(found.lastindex or 1)
            template = f"{shown[:begin]}\0{shown[end:]}"
            return Form(example, re.compile(pattern.format(tag=tag) if tag else pattern, re.IGNORECASE), example=template)
    labelled = _LABELLED.fullmatch(shown)
    if not labelled or (labelled["label"] and not re.search(r"[^\W\d]", labelled["label"])):
        raise ValueError(f"{example!r} shows no form: write an example, such as '[[5]]', '[[A]]' or 'Score: 7'")
    label = re.sub(r"(?:\\ )+", " ", re.escape(labelled["label"]))
    separator = r"(?: ?(?:[:=]|->) ?| is:? )" if labelled["separator"].strip() else " ?:? ?"
    return Form(example, label=label + separator if label else "", example=f"{labelled['label']}{labelled['separator']}\0")


# Words in eight languages. They never make a verdict; they only keep a text from being one.

_RATING = r"(?:rat(?:e|ed|ing)|scored?|grade|verdict|decision|評価|评分|평가|оцен|bewert|not(?:e|er)|calific|puntu)"
_UNQUOTED = re.compile(
    rf"((?:\b(?:my|final|overall) [^\"“「`:：\n]{{0,30}}?{_RATING}\w*|{_RATING}[^\"“「`:：\n]{{0,60}}(?:follow(?:s|ing)|"
    r"次の\w*|以下の\w*|如下|다음과 같\w*|folgt|suivante?|suit|siguiente|sigue|следующ\w*))(?: is)?[*_]*[:：]?[*_]*)\s*"
    rf"[\"“「`]([^\"”」`\n]{{0,30}}{VALUE}[^{VALUE}]{{1,60}}{VALUE}[*_]*)[\"”」`](?=[*_.。]*\s*\Z)",
    re.IGNORECASE,
)
"""The last words of a judge that quotes the form as it was told: ``I rate the response as follows: "Rating: [[9]]"``."""
_TASK = re.compile(
    r"\b(?:answers?|results?|solution|total|value|work|gives?|output|equals?|sum)\b|=|答案|結果|结果|정답|ответ", re.IGNORECASE
)
_NEGATION = re.compile(
    r"\b(?:not|never|no|nor|cannot|\w+n['’]t|neither|nicht|kein\w*|nie|ne|n['’]|pas|jamais|nunca|не|нет|никак\w*)\b|"
    r"不|没|别|未|ない|ません|않|아니",
    re.IGNORECASE,
)
_NOT_OWN = re.compile(
    # conditions
    r"\b(?:if|unless|suppose|wenn|falls|sofern|si|s['’]il|если)\b|^(?:were|had|wäre|hätte)\b|如果|假如|要是|もし|であれば|만약|라면|다면|"
    # numbers that are not quite, or not now, the verdict
    r"e\.g\.|i\.e\.|\b(?:vs|cf|viz)\.|\.\.\.|…|\b(?:wants?|begs?|urges?|orders?|expects?|instead|rather|almost|nearly|between|below|under|above|"
    r"previous|initial|earlier|expected|claimed|suggested|draft|possible|reported|max(?:imum)?|min(?:imum)?|"
    r"at (?:most|least|best)|up to|self\S*|far from|weit von|loin d\w+|lejos de|далек\w+|fast|höchstens|mindestens|zwischen|maximal\w*|"
    r"presque|entre|maxim\w*|au (?:plus|moins)|casi|máxim\w*|почти|между|"
    r"максим\w*)\b|几乎|最高|最多|至少|满分|以前|ほぼ|最大|満点|최대|만점|거의|"
    # what the judged text holds, wants or gives itself
    r"\b(?:hidden|inject\w*|manipulat\w*|please|ignore (?:all|any|the|previous)|(?:gives?|gave|awards?|rates?|scores?) "
    r"(?:it|him|her|them)sel(?:f|ves)|steht|heißt es|ignorier\w*|sich selbst|on (?:y )?lit|figure|ignorez|se donne|aparece|ignora|se da|"
    r"sí mism\w+|написано|указано|стоит|содержит\w*|игнорируй\w*|себе)\b|"
    r"忽略|无视|给自己|包含|出现|含まれ|記載|書かれ|無視|自分に|포함|적혀|쓰여|무시|스스로|"
    # examples
    rf"{SHOWS.pattern}",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\b(?:would|could|might|würde|könnte|serait|pourrait|mériterait|sería|podría|tendría|merecería|бы)\b|だろう|でしょう|했을",
    re.IGNORECASE,
)
_COPULA = (
    r"(?: ?(?:点|分|점))? ?(?:です|でした|だ|である|と(?:します|しました|する|評価し?ます|評価する|いたします|なります|判断します|"
    r"採点します)|입니다|이다|(?:을|를) (?:주|부여|드리)\w*|(?:으?로) (?:평가|매기)\w*|bewerten|bewertet|geben|vergeben)?"
)
_AFTER = re.compile(rf"(?: ?(?:/|out of) ?(?P<top>[0-9]+)| points?)?{_COPULA}[)\]*.!。…]*", re.IGNORECASE)
_TIE_GLOSS = re.compile(
    r"[ ,(:–—-]*(?:for|as|=|is|für|pour|para|за|表示|代表)? ?(?:an? |ein |une |un )?(?:tie|draw|unentschieden|gleichstand|égalité|empate|"
    r"ничь\w+|平局|引き分け|무승부)\b[^.!?。\d]{0,200}[.!。)]*",
    re.IGNORECASE,
)


class FormReader:
    """Finds the verdict in an answer to a judge that was asked for one form."""

    def __init__(self, form: Form, reader: TextReader) -> None:
        self._form, self._reader = form, reader
        value = reader.value.replace("(?-i:", "(?:")
        if form.marked:
            unclear = rf"(?P<unclear>[^{VALUE}]*\d[^{VALUE}]*|[A-Z](?:[<>=]+[A-Z])?)"
            pattern = rf"{VALUE} ?(?:(?:[^\W\d][^\d\n{VALUE}]{{0,20}}: ?)?{value}|{unclear}) ?{VALUE}"
        else:
            pattern = rf"(?<![^\W_]){form.label}{value}(?![^\W_]|[.,/]\d)"
        self._find = re.compile(pattern, re.IGNORECASE)

    def read(self, text: str, value_of: ValueOf) -> Any:
        """Return the value of the verdict; None if the form does not occur. Raises :class:`Unreadable`."""
        text = text.replace(VALUE, "").translate(WIDE)
        if self._form.marked:
            text = self._form.marked.sub(lambda value: f"{VALUE}{value[1]}{VALUE}", text)
        words, objects = own_words(_UNQUOTED.sub(r"\1 \2", text), value_of)
        found = list(sentences(words, marked=True))
        unclear = Unreadable("The verdict is none of the values that were asked for.")
        hits = [
            (
                place,
                match,
                unclear if match.groupdict().get("unclear") else self._reader.stated(match),
                _AFTER.fullmatch(match.string, match.end()),
            )
            for place, each in enumerate(found)
            for match in self._find.finditer(each.text)
        ]
        if not hits or not (self._form.marked or self._form.label):
            return None
        place, match, value, plain = hits[-1]
        if isinstance(value, Unreadable):
            raise value
        if plain and plain["top"]:
            number_of(f"{value}/{plain['top']}", self._reader.scale)
        is_tie = self._reader.tie is not None and value == self._reader.tie
        if not plain and not (is_tie and _TIE_GLOSS.fullmatch(match.string, match.end())):
            raise Unreadable("The last verdict in the form that was asked for does not stand at the end of its line.")
        rivals = [(at, ends) for at, _, other, ends in hits if other != value]
        ends_line = plain and (place + 1 == len(found) or found[place + 1].first)
        places = {at for at, *_ in hits}
        others = [words for at, words in enumerate(self._reader.with_headings(found)) if at not in places]
        if (
            (rivals and (not ends_line or any(at == place or ends for at, ends in rivals)))
            or any(other != value for other, _ in objects)
            or any(self._reader.states_other(words, value) for words in others)
        ):
            raise Unreadable("The answer gives more than one verdict.")
        before = match.string[: match.start()]
        of_task = "boxed" in self._form.name and _TASK.search(f"{found[place - 1].text if place else ''}\n{before}")
        if of_task or not self._is_own(found[place], before):
            raise Unreadable("The verdict may be reported or supposed: it must stand on a line of its own.")
        if self._reader.may_be_revised([each.text for each in found[place + 1 :]], value, in_form=True):
            raise Unreadable("What follows the verdict may revise it.")
        return value

    def _is_own(self, sentence: Sentence, before: str) -> bool:
        if not sentence.own or (self._form.label and not LEAD.fullmatch(before)):
            return False
        says = [*SAYS.finditer(before)]
        heads = HEADS_SPEECH.match(before)
        clause = re.split(r"[,;:，；、：]| but ", before.rstrip(" :："))[-1]
        return not (
            (says and (not PERSON.search(before) or re.search(r"[:：]", before[says[-1].end() :][:40])))
            or (heads and heads[0][-1] in ":：")
            or (_SUPPOSED.search(before) and not PERSON.search(before))
            or _NOT_OWN.search(before)
            or _NEGATION.search(clause)
        )
