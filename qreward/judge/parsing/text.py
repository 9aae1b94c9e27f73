"""Verdicts in free text. A verdict is accepted if one sentence is the verdict and nothing else, and no other sentence contradicts or may
revise it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from qreward.judge.parsing.quotes import GAP, OBJECT, VALUE, Unreadable, ValueOf, own_words

Scale = tuple[float, float]

WIDE = {ord(wide): plain for wide, plain in zip("０１２３４５６７８９［］【】＜＞＝：／", "0123456789[][]<>=:/", strict=True)}
"""The plain forms of full-width digits and marks."""

# Numbers. Digits are ASCII. A comma before three digits may separate thousands; any other comma is a decimal comma.

_DIGITS = r"[+\-\u2212]?(?:(?:0|[1-9][0-9]{0,8})(?:[.,][0-9]{1,17})?|\.[0-9]{1,17})"
_UNIT = r"(?: ?(?:points?|pts|stars?)\b| ?\u5206)?"
_SCORE = rf"(?P<number>{_DIGITS})(?: ?(?P<percent>%)|{_UNIT}(?:(?: ?/ ?| (?:out )?of )(?P<top>{_DIGITS}))?{_UNIT})"
_SCORE_ALONE = re.compile(_SCORE, re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_ANY_NUMBER = re.compile(r"(?<![\w.,])[+\-\u2212]?\d+(?:[.,]\d+)?|(?<=[-\u2013])\d+(?:[.,]\d+)?")


def number_of(value: object, scale: Scale | None) -> float:
    """Return a member of a JSON object as a number on the scale. The member may be a number, or a text such as ``7`` or ``7/10``."""
    if isinstance(value, str) and (match := _SCORE_ALONE.fullmatch(value.strip().translate(WIDE))):
        return _score(match, scale)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _on_scale(value, scale)
    raise Unreadable("The score is not a number.")


def _score(match: re.Match[str], scale: Scale | None) -> float:
    if re.search(r",\d{3}$", match["number"]):
        raise Unreadable("The score is not one plain number.")
    value = Decimal(_ascii(match["number"]))
    if match["percent"]:
        if scale not in ((0, 1), (0, 100)):
            raise Unreadable("The score is a percentage, which this scale does not allow.")
        value = value / 100 if scale == (0, 1) else value
    if match["top"] and (scale is None or float(_ascii(match["top"])) != scale[1]):
        raise Unreadable("The score is a fraction of something other than the top of the scale.")
    return _on_scale(value, scale)


def _ascii(number: str) -> str:
    return number.replace(",", ".").replace("\u2212", "-")


def _on_scale(value: float | Decimal, scale: Scale | None) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Unreadable("The score must be a finite number.")
    if scale and not scale[0] <= number <= scale[1]:
        raise Unreadable(f"The score must be from {shown(scale[0])} to {shown(scale[1])}.")
    return number


def shown(end: float) -> str:
    return f"{end:g}"


# Sentences.

_BOXED = re.compile(r"\$?\\boxed\{ ?(?:\\text\{)?([^{}\n]{1,30})\}?\}\$?")
_MATH = re.compile(r"(?<!\w)(?:\$([^$\n]{1,20})\$|\\\(([^\n]{1,20}?)\\\))(?!\w)")
_EMPHASIS = re.compile(r"(?<![0-9A-Za-z])[*_]+|[*_]+(?![0-9A-Za-z])")
_BULLET = re.compile(r"^(?:(?:#{1,6}|[-+*\u2022]|\(?\d{1,2}[.)])[ \t]+)+")
_SPACES = re.compile(r"[ \t\u00a0\u202f]+")
_ENDS = re.compile(r" (?<=[.!?\u3002\uff01\uff1f] )(?<!\.\. )(?<!\b[A-Za-z]\.[A-Za-z]\. )(?<!\bvs\. )(?<!\bcf\. )(?<!\bviz\. )")
_WIDE_STOP = re.compile(r"[\u3002\uff01\uff1f]")
_OTHERS = (
    r"(?:\b(?:candidate|response|answer|assistant|model|student|user|author|writer|respondent|essay|solution|completion|submission|text|"
    r"output|prompt|transcript|its?|their|his|her|they|he|she|Antwort|Modell|Kandidat|r\u00e9ponse|mod\u00e8le|candidat|respuesta|modelo|"
    r"candidato|asistente|Assistent\w*)(?:s|['\u2019]s?|en)?\b|\b(?:\u043e\u0442\u0432\u0435\u0442|\u043c\u043e\u0434\u0435\u043b|"
    r"\u043a\u0430\u043d\u0434\u0438\u0434\u0430\u0442)|\u56de\u7b54|\u7b54\u6848|\u5019\u9009|\u6a21\u578b|\u5fdc\u7b54|"
    r"\u30e2\u30c7\u30eb|\u30a2\u30b7\u30b9\u30bf\u30f3\u30c8|\ub2f5\ubcc0|\uc751\ub2f5|\ubaa8\ub378)"
)
_SAYS = (
    r"(?:\b(?:wr[io]tes?|written|writing|sa(?:ys?|id|ying)|claim(?:s|ed|ing)?|stat(?:es?|ed|ing)|quot(?:es?|ed|ing)|contain(?:s|ed|ing)?|"
    r"includ(?:es?|ed|ing)|print(?:s|ed)?|repl(?:y|ies|ied)|respond(?:s|ed)?|answer(?:s|ed)|(?:end|begin|start|conclude)(?:s|ed)? with|"
    r"asks?|asked|instruct\w*|demand\w*|tells?|told|tr(?:ies|ied|ying) to|insist\w*|assert\w*|announce\w*|append\w*|declare\w*|reads|"
    r"mention\w*|request\w*|output(?:s|ted)|adds|added|submit\w*|example|template|format|such as|schreib\w*|schrieb|sagt|behauptet|endet|"
    r"\u00e9crit|dit|affirme|pr\u00e9tend|escrib\w*|dice|dijo|afirma)\b|\b(?:\u043f\u0438\u0448\u0435|\u043d\u0430\u043f\u0438\u0441\u0430|"
    r"\u0443\u0442\u0432\u0435\u0440\u0436\u0434\u0430|\u0433\u043e\u0432\u043e\u0440\u0438|\u0437\u0430\u044f\u0432\u043b\u044f)|"
    r"\u5199\u9053|\u5199\u7740|\u58f0\u79f0|\u81ea\u79f0|\u5f15\u7528|\u8bf4\u9053|\u8981\u6c42|\u63d0\u5230|\u8bf4|"
    r"\u66f8|\u8ff0\u3079|\u4e3b\u5f35|\u8a00|\uc37c|\uc8fc\uc7a5|\ub9d0)"
)
SAYS = re.compile(_SAYS, re.IGNORECASE)
_NAMES_ANOTHER = re.compile(_OTHERS, re.IGNORECASE)
_OWN = re.compile(
    r"\b(?:mine|verdict|evaluation|assessment|judge?ment|final|analysis|review|feedback|critique|notes|(?:rat|scor|grad)(?:e|ed|ing))\b",
    re.IGNORECASE,
)
PERSON = re.compile(
    r"\b(?:i|my|we|our|ich|mein\w*|wir|unser\w*|je|mon|ma|mes|nous|yo|mi|mis|doy|otorgo|asigno|califico|я|мо[йяеёию]\w*|мы|наш\w*)\b|\bj['’]|"
    r"我|本人|私|わたし|僕|저는|나는|제가|내가|제 |내 ",
    re.IGNORECASE,
)
_VERBS = (
    r"(?:\b(?:writes|wrote|sa(?:ys?|id)|claim(?:s|ed)?|state[sd]|repl(?:y|ies|ied)|respond(?:s|ed)?|answered|asserts?|declare[sd]?|insists?|"
    r"demands?|instructs?|announces?|reads?|(?:end|begin|start|conclude)s? with|last (?:words?|line)\S*|schreib\w*|schrieb|sagt|behauptet|"
    r"endet|écrit|dit|affirme|prétend|escrib\w*|dice|dijo|afirma)\b|\b(?:пише|написа|утвержда|говори|заявля)|写道|写着|声称|自称|说|"
    r"書い|述べ|主張し|言っ|썼|주장|말하|말합)"
)
_SPEAKS = re.compile(rf"{_VERBS}(?:[^:：.,!?]{{0,40}}[:：]|[^\w:：.,!?;{GAP}]*)$", re.IGNORECASE)
_SPEAKS_WITHIN = re.compile(rf"{_VERBS}[^:：.,]{{0,20}}[:：]", re.IGNORECASE)
HEADS_SPEECH = re.compile(rf"(?!they|he|she|it)(?:the )?(?:(?:{_OTHERS})[ の的의]{{0,2}}){{1,3}} ?[:：]?", re.IGNORECASE)
SHOWS = re.compile(
    r"\b(?:example|template|format|instance|beispiel|exemple|ejemplo|пример|например)\b|例(?:如|えば)?[:：、,]|예(?:시|를 들어)?[:：,]",
    re.IGNORECASE,
)


class Sentence(NamedTuple):
    """Holds a sentence outside of quotations, without markup."""

    text: str
    own: bool
    first: bool = True


def sentences(words: str, *, marked: bool = False) -> Iterator[Sentence]:
    report, gaps, all_gaps = "", 0, words.count(GAP)
    for raw in words.split("\n"):
        line = _line(raw)
        if not line:
            report = "" if report == "paragraph" else report
            continue
        report = "paragraph" if report == "next" else report
        titled = raw.lstrip().startswith("#") or (raw.strip().startswith("**") and raw.strip().endswith("**"))
        for place, part in enumerate(filter(None, map(str.strip, _ENDS.split(line)))):
            if report == "title" and part == GAP:
                report = ""  # what the title announces is quoted
            yield Sentence(part, not report and (marked or gaps in (0, all_gaps)), not place)
            gaps += part.count(GAP)
            report = report or _introduces(part, titled=titled)


def _line(raw: str) -> str:
    line = _SPACES.sub(" ", raw).strip(" \u200b\ufeff")
    if line.startswith("|"):
        line = ": ".join(cell.strip() for cell in line.strip("| ").split("|"))
    line = _BULLET.sub("", line, count=1)
    if "$" in line or "\\" in line:
        line = _MATH.sub(lambda found: found[1] or found[2], _BOXED.sub(r"\1", line))
    if "*" in line or "_" in line:
        line = _EMPHASIS.sub("", line)
    return _WIDE_STOP.sub(r"\g<0> ", line).strip()


def _introduces(part: str, *, titled: bool) -> str:
    """Return how far the reported speech reaches that a sentence introduces: the ``paragraph``, the ``next`` one, the text below a
    ``title``, or the rest of the ``answer``; ``""`` for none."""
    names = bool(_NAMES_ANOTHER.search(part))
    if names and _SPEAKS.search(part):
        return "answer"
    if (titled or part[-1] in ":：") and HEADS_SPEECH.fullmatch(part):
        return "title"
    if names and _SPEAKS_WITHIN.search(part):
        return "paragraph"
    if part[-1] not in ":：":
        return ""
    own = _OWN.search(part) or PERSON.search(part)
    return "next" if SHOWS.search(part) or ((names or SAYS.search(part)) and not own) else ""


# Verdicts.

_TASK_WORDS = frozenset({"answer", "result", "total", "conclusion", "output", "solution", "choice"})
"""Labels that may also name the result of the task. These labels never introduce a verdict, even if the deciding field has such a name."""
_LEAD = r"(?:(?:my|the|so|thus|therefore|hence|and|here is|here['\u2019]s|overall|final)[ ,]+){0,5}"
LEAD = re.compile(_LEAD, re.IGNORECASE)
_SPAN = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_RANGE = rf"(?: ?[(\[](?:(?:on )?(?:a )?(?:scale )?(?:of |from )?(?P<low>{_SPAN}) ?(?:-|\u2013|to) ?|out of )(?P<high>{_SPAN})[)\]])?"
_SEPARATOR = r"(?: ?(?:[:=\uff1a]|->|=>|\u2192|[-\u2013\u2014](?= ))(?: is)? ?| (?:is|=):? ?| (?=\[\[|[0-9][0-9.,]* ?/)|(?<=\[result\]) ?)"
_SCORE_LABELS = (
    r"score|rating|grade|verdict|\[result\]|overall(?=[^\w\n]{1,4}[0-9.,]+ ?/)|"
    "(?:\u6700\u7ec8|\u603b\u4f53)?(?:\u8bc4\u5206|\u5f97\u5206|\u5206\u6570|\u6253\u5206)"
)
_CHOICE_LABELS = (
    "verdict|judge?ment|decision|preference|preferred|winner|rating|grade|"
    "(?:better|best|preferred|winning) (?:response|answer|assistant|option|one)"
)
_JUDGING = (
    r"\b(?:scor(?:es?|ed|ing)|rat(?:es?|ed|ings?)|grad(?:es?|ed|ing)|verdicts?|marks?|deserv\w*|merits?|award\w*|assign\w*|"
    r"judge?ments?|decisions?|prefer\w*|winner|choose|pick)\b|\b(?:i|we)\b.{0,12}\bgive\b|\[\[|"
    "\u8bc4\u5206|\u5f97\u5206|\u5206\u6570|\u6253\u5206"
)
_ASPECT = re.compile(rf"[^\W\d][\w &/-]{{1,40}}: ?{_DIGITS} ?/ ?{_DIGITS}[.]?")
WORD = re.compile(r"\w")
_REASON = re.compile(
    r"(?:this|the|my) (?:score|rating|grade|verdict) (?:reflects|is based on|takes into account)\b|"
    r"(?:(?:brief|short|detailed|my|the|main) )?(?:reason(?:s|ing)?|explanation|rationale|justification|feedback|analysis|critique|"
    r"strengths?|weakness(?:es)?)(?: for (?:my|the|this) (?:score|rating|grade|verdict))? ?(?:[:\uff1a]|$)|"
    r"(?:\u7406\u7531|\u539f\u56e0|\u89e3\u91ca)[:\uff1a]",
    re.IGNORECASE,
)
"""A pattern of the labels that may begin a text after the verdict."""
_REVISES = re.compile(
    r"\b(?:rather|instead|nope|oh|edit|not so fast|second (?:thoughts?|look)|correct(?:ed|ing)|rethink\w*|the above|"
    r"re-?(?:grad|scor)\w*|ignore (?:it|this|that)|scrap|struck|stricken|(?:should|must|ought to|needs? to) (?:have been|be)|"
    r"make (?:it|that)|chang(?:e|ed|ing)|adjust\w*|amend\w*|updat\w*|low(?:er|ered|ering)|higher|rais(?:e|ed|ing)|increas\w*|decreas\w*|"
    r"reduc\w*|deduct\w*|subtract\w*|minus|bump\w*|too severe|generous|harsh|lenient|overlook\w*|forgot\w*|misread|misjudg\w*|credit|"
    r"me|my|we|let['\u2019]?s|i|zero|two|three|four|five|six|seven|eight|nine|ten)\b",
    re.IGNORECASE,
)
"""Words that may revise a score beside those of ``_TAKES_BACK``. Most are about the judge, the verdict or another number. The words of a
reason are about the response instead."""
_TAKES_BACK = re.compile(
    r"\b(?:wait|h+m+|actually|corrections?|erratum|oops|whoops|sorry|apolog\w*|scratch|strike|disregard\w*|ignore|never ?mind|hold on|"
    r"hang on|on (?:second thoughts?|reflection|closer)|looking (?:again|back)|re-?(?:consider|evaluat|assess|think|check|examin|read|"
    r"visit)\w*|revis\w*|retract\w*|withdr[ae]w\w*|back|change (?:it|this|my)|mistaken|my (?:mistake|score|rating|verdict)|"
    r"i (?:was|am|missed|overlooked|forgot|misread)|"
    r"too (?:high|low|generous|harsh|strict|lenient|kind)|in fact|after all|"
    r"(?:less|more|lower|higher|better|worse) than (?:this|that)|should (?:have been|be)|"
    r"no longer|forget|void|discard\w*|cancel\w*|upgrad\w*|downgrad\w*|"
    r"moment|warte\w*|korrektur|korrigier\w*|eigentlich|zurück\w*|revidier\w*|überdenk\w*|vielmehr|stattdessen|irrtum|geirrt|doch|nein|"
    r"attend\w*|rectif\w*|corrig\w*|en fait|finalement|plutôt|à la réflexion|retire|rétracte|trompée?|annul\w*|non|"
    r"espera|corrección|corrijo|en realidad|mejor dicho|pensándolo|retiro|equivoqu\w*|más bien|anulo|"
    r"подожд\w*|стоп|исправ\w*|поправ\w*|пересм\w*|передума\w*|отзыва\w*|на самом деле|впрочем|ошиб(?:ся|лась)|назад|точнее|скорее|нет)\b|"
    r"^no\b|~~|等等|等一下|更正|修正|改为|改成|重新|不对|收回|撤回|应该是|抱歉|再想|其实|待って|訂正|撤回|やはり|やっぱり|再考|見直|考え直|間違え|いや|実は|"
    r"잠깐|정정|수정|다시|재고|철회|아니|취소|실수|사실",
    re.IGNORECASE | re.MULTILINE,
)
_SUBJECT = re.compile(
    r"\b(?:candidate|response|answer|assistant|model|solution|student|explanation|reason|reasoning|both|(?-i:[AB]))(?:['’]s|s)?\b|"
    r"\b(?:antwort|modell|kandidat|assistent|réponse|modèle|candidat|respuesta|modelo|candidato|asistente)\w*|"
    r"\b(?:ответ|модел|кандидат|ассистент)|回答|答案|助手|模型|応答|アシスタント|モデル|답변|응답|모델|어시스턴트",
    re.IGNORECASE,
)
"""What a reason is about. A sentence after a verdict that is about none of these may take the verdict back."""
_COURTESY = re.compile(
    r"(?:i )?hope (?:this|that|it) helps?\b.*|(?:please )?(?:let me know|feel free)\b.*|(?:many )?thanks?(?: you)?\b.{0,40}|"
    r"if you (?:have|need|want|would like)\b.*|is there anything else\b.*|希望.*帮助.*|如有.*问题.*|お役に立て.*|도움이 되.*|надеюсь.*|"
    r"ich hoffe,? .* (?:hilft|helfen).*|j['’]espère que .* aide.*|espero que .* (?:ayude|útil).*",
    re.IGNORECASE,
)
"""A friendly sentence, which takes nothing back."""
_BETTER = (
    r"(?<![A-Za-z])(?P<better>(?-i:[AB]))(?![A-Za-z])[^,.;，。、AB]{0,30}(?:besser|überlegen|meilleure?|supérieure?|mejor|superior a|лучше|"
    r"更好|更优|より(?:良|優)|優れて|더 (?:낫|좋|나은|우수))"
)
_PAIR_NOUN = r"(?:(?:the )?(?:response|assistant|answer|option|candidate|model|output) )?"


def spellings(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a choice with all their spellings. A choice between A, B and tie is also made by the marks of benchmarks."""
    if not {"A", "B", "tie"} <= options.keys():
        return options
    a, b, tie = options["A"], options["B"], options["tie"]
    ranks = {"A>>B": a, "A>B": a, "A=B": tie, "A<B": b, "A<<B": b, "B>>A": b, "B>A": b, "B=A": tie, "B<A": a, "B<<A": a}
    return {"draw": tie, "C": tie, **ranks, **options}


def choice_of(word: str, values: Mapping[str, Any]) -> Any:
    """Return the value of an option. Its case matters only if two options differ in nothing else. Raises :class:`Unreadable`."""
    if word in values:
        return values[word]
    found = [value for option, value in values.items() if option.casefold() == word.casefold()]
    if len(found) != 1:  # none, if "t\u0131e" matches "tie" because case is ignored
        raise Unreadable("The answer writes a choice in other letters.")
    return found[0]


class TextReader:
    """Finds the verdict in a text, if there is exactly one verdict. One instance reads all answers with the same form of verdict."""

    def __init__(self, field: str | None, scale: Scale | None, options: Mapping[str, Any] | None = None) -> None:
        self.scale, self._options = scale, options
        own = "" if not field or _TASK_WORDS.intersection(field.lower().split("_")) else "|" + re.escape(field).replace("_", "[ _]")
        labels = f"(?:{_SCORE_LABELS if options is None else _CHOICE_LABELS}{own})"
        self.tie: Any = None
        value = self.value = _SCORE if options is None else self._choices(options)
        value = rf"(?:\[?(?P<object>{OBJECT})\]?|(?P<open>\[\[ ?)?{value}(?(open) ?\]\]))[.!\u3002]?"
        loose = value.replace("(?-i:", "(?:")  # after a label, "a" is no article
        self._verdict = re.compile(rf"(?:{_LEAD}{labels}{_RANGE}{_SEPARATOR}|(?=\[\[|\[?{OBJECT})){loose}", re.IGNORECASE)
        self._alone = re.compile(value, re.IGNORECASE)
        self._heading = re.compile(rf"{_LEAD}{labels}{_RANGE} ?[:\uff1a]?", re.IGNORECASE)
        self._judging = re.compile(rf"{_JUDGING}|\b(?:{own[1:] or '(?!)'})\b", re.IGNORECASE)
        top = "(?!)" if scale is None else re.escape(shown(scale[1]))
        low = "(?!)" if scale is None else re.escape(shown(scale[0]))
        self._of_top = re.compile(rf" ?(?:/|out of) ?{top}(?!\w|\.\d)", re.IGNORECASE)
        self._span = re.compile(rf"(?<![\w.])(?:0|1|{low}) ?(?:-|\u2013|to|and) ?{top}(?!\w|\.\d)", re.IGNORECASE)

    def _choices(self, options: Mapping[str, Any]) -> str:
        """Return the pattern of a choice, and compile those of sentences that make one, because "A" occurs in every text."""
        pair = {"A", "B", "tie"} <= options.keys()
        self.tie = options.get("tie") if pair else None
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
            self._made.append(
                re.compile(rf"\b(?P<option>(?-i:[AB])) (?:wins|{better})(?= than\b| overall|[.!,;]|$)|{_BETTER}", re.IGNORECASE)
            )
        return rf"{noun}(?P<option>{one})"

    def read(self, text: str, value_of: ValueOf) -> tuple[Any, dict[str, Any] | None]:
        """Return the value of the verdict, and the members of its JSON object; None for words. Raises :class:`Unreadable`."""
        own_text, objects = own_words(text.translate(WIDE), value_of)
        found = list(sentences(own_text))
        given = iter(objects)
        verdicts: list[tuple[int, Any, dict[str, Any] | None]] = []
        others: list[tuple[int, str]] = []
        for index, ((words, own, _), stated) in enumerate(zip(found, self.with_headings(found), strict=True)):
            mine = [next(given) for _ in range(words.count(OBJECT))]
            match = self._verdict.fullmatch(stated) or (self._alone.fullmatch(words) if len(found) == 1 else None)
            if match and own:
                verdicts.append((index, *(mine[0] if mine else (self.value_in(match), None))))
            else:
                others.append((index, stated))
                verdicts += [(-1, value, None) for value, _ in mine]  # not accepted, but a different verdict conflicts with it
        last, value, members = max(verdicts, key=lambda verdict: verdict[0], default=(-1, None, None))
        if last < 0:
            raise Unreadable("No sentence of the answer is a verdict and nothing else, outside of quotations and reported speech.")
        if any(other != value for _, other, _ in verdicts) or any(self.differs(words, value) for _, words in others):
            raise Unreadable("The answer gives more than one verdict.")
        if self.may_be_revised([words for at, words in others if at > last], value):
            raise Unreadable('What follows the verdict may revise it: only reasons after "Reason:", without other numbers, may follow.')
        return value, members

    def with_headings(self, found: Sequence[Sentence]) -> Iterator[str]:
        """Yield the sentences. A value alone below a heading such as "Score" is preceded by this heading."""
        heading = ""
        for words, own, _ in found:
            yield f"{heading}: {words}" if heading and self._alone.fullmatch(words) else words
            heading = words.rstrip(":\uff1a ") if own and self._heading.fullmatch(words) else ""

    def value_in(self, match: re.Match[str]) -> Any:
        if self._options is not None:
            return choice_of(match["option"] or match["better"], self._values)
        groups = match.groupdict()
        if (groups.get("open") or VALUE in match[0]) and "," in match["number"]:
            raise Unreadable("The score is not one plain number.")
        low, high = groups.get("low"), groups.get("high")
        if high and (self.scale is None or float(high) != self.scale[1] or (low and float(low) not in {self.scale[0], 0, 1})):
            raise Unreadable("The answer names another scale beside its score.")
        return _score(match, self.scale)

    def differs(self, words: str, value: Any) -> bool:
        """Return whether a sentence may contain a verdict other than ``value``. A score of an aspect ("Style: 6/10") is not a verdict."""
        if self._options is not None:
            made = [match for pattern in self._made for match in pattern.finditer(words)]
            made += self._any.finditer(words) if self._judging.search(words) else []
            return any(self.stated(match) != value for match in made if match[0])
        if not _DIGIT.search(words):
            return False
        if self._judging.search(words):
            return self._has_other_number(words, value)
        tops = [] if _ASPECT.fullmatch(words) else self._of_top.finditer(words)
        return any(self._has_other_number(words[max(0, top.start() - 20) : top.start()].rpartition(" ")[2], value) for top in tops)

    def stated(self, match: re.Match[str]) -> Any:
        """Return the value in a match, or what is wrong with it, which is equal to no value."""
        try:
            return self.value_in(match)
        except Unreadable as error:
            return error

    def states_other(self, words: str, value: Any) -> bool:
        match = self._verdict.fullmatch(words)
        return match is not None and OBJECT not in words and self.stated(match) != value

    def may_be_revised(self, after: Sequence[str], value: Any, *, in_form: bool = False) -> bool:
        """Return whether a text after the verdict may revise it. Reasons after "Reason:" do not; ``in_form``, without this label."""
        rest = [words for words in after if WORD.search(words) and not _COURTESY.fullmatch(words)]
        label = _REASON.match(rest[0]) if rest else None  # "My reason for the score:" revises nothing
        if label:
            rest[0] = rest[0][label.end() :]
        elif rest and not (in_form and _SUBJECT.search(rest[0])):
            return True
        text = "\n".join(rest)
        if _TAKES_BACK.search(text):
            return True
        if in_form and self.tie is not None:
            return any(self.stated(made) != value for words in rest for made in self._made[-1].finditer(words))
        return bool(_REVISES.search(text) or self._judging.search(text)) or (
            self._options is None and any(self._has_other_number(words, value) for words in rest)
        )

    def _has_other_number(self, words: str, value: float) -> bool:
        words = self._of_top.sub(" ", self._span.sub(" ", words))
        return any(float(_ascii(number)) != value for number in _ANY_NUMBER.findall(words))
