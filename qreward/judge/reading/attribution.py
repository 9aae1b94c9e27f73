"""Whether a clause says that what follows, or came before, is another's. Knows nothing of verdicts.

A word too many here costs a question more; a word too few lets a judged text speak for the judge.
"""

from __future__ import annotations

import re

_OTHERS = r"(?:candidate|response|answer|assistant|model|student|user|author|writer|respondent|essay|solution|completion|submission|text)"
_SAYING = re.compile(
    r"\b(?:wr[io]tes?|writing|written|sa(?:ys?|id|ying)|claim(?:s|ed|ing)?|stat(?:es?|ed|ing)|quot(?:es?|ed|ing|ation)|"
    r"contain(?:s|ed|ing)?|includ(?:es?|ed|ing)|print(?:s|ed|ing)?|return(?:s|ed)|produc(?:es?|ed)|repl(?:y|ies|ied)|"
    r"respond(?:s|ed)|(?:end|begin|start|conclude)(?:s|ed|ing)? with|began with|asks?|asked|asking|instruct(?:s|ed|ion|ions|ing)?|"
    r"demand(?:s|ed|ing)?|t(?:ells?|old)|tr(?:ies|ied|ying) to|attempt(?:s|ed|ing)?|inject(?:s|ed|ion|ing)?|itself|himself|herself|"
    r"themselves|self|example|e\.g|such as|called|asserts?|asserted|insists?|insisted|announces?|announced|appends?|appended|"
    r"declares?|declared|reads|mentions?|mentioned|requests?|requested|suggest(?:s|ed)|output(?:s|ted)|added|adds|puts?|"
    rf"hypothetical|had it been|{_OTHERS}s?['’]s?)(?!\w)",  # noqa: RUF001
    re.IGNORECASE,
)
_ABOUT = re.compile(rf"\b(?:of|for|on|to|about|regarding)\s+(?:the|this|that|both|each)?\s*{_OTHERS}s?\b", re.IGNORECASE)
_SAYING_IN_CHINESE = re.compile(
    "\u5199\u9053|\u5199\u7740|\u58f0\u79f0|\u81ea\u79f0|\u5ba3\u79f0|\u5f15\u7528|\u58f0\u660e|\u8bf4\u9053|\u8981\u6c42|\u63d0\u5230|\u8bf4[:\uff1a]"
)
_AS_ASKED = re.compile(r"\bas (?:you )?(?:asked|requested|instructed|demanded)\b", re.IGNORECASE)
_SUBJECT = re.compile(rf"\b(?:{_OTHERS}s?|its|their|his|her|they|it)\b", re.IGNORECASE)
_OWN = re.compile(
    r"\b(?:my|mine|verdict|evaluation|assessment|judge?ment|rating|grading|score|final|so|therefore|thus|hence|i)\b", re.IGNORECASE
)


def is_anothers(clause: str) -> bool:
    """Whether a clause puts what it leads to into another's mouth.

    Example:
        >>> is_anothers("The candidate wrote:"), is_anothers("Here is my evaluation of the response:")
        (True, False)
    """
    if reports(clause):
        return True
    return bool(_SUBJECT.search(_ABOUT.sub(" ", clause)) and not _OWN.search(clause))


def reports(clause: str) -> bool:
    """Whether a clause speaks of saying, or of what is someone's."""
    return bool(_SAYING.search(_AS_ASKED.sub("", clause)) or _SAYING_IN_CHINESE.search(clause))


def introduces_anothers(before: str) -> bool:
    """Whether the clause at the end of ``before`` leads to what another said. One that ends with its line, with no colon, leads
    nowhere unless it is a heading or speaks of saying.

    Example:
        >>> introduces_anothers("It is long. The candidate wrote:\\n"), introduces_anothers("The response is long\\n")
        (True, False)
    """
    tail = before[-400:].rstrip()
    if not tail or tail[-1] in ".!?;":
        return False
    clause = re.split(r"(?<=[.!?;])\s|\n", tail)[-1].strip()
    joined = clause.startswith(("#", "**")) or tail[-1] in ":,\uff1a" or "\n" not in before[-400:][len(tail) :]
    return is_anothers(clause) if joined else reports(clause)


def rest_of(after: str) -> str:
    """The clause that goes on after what stands before ``after``, to the end of its sentence or line."""
    return re.split(r"[.!?;](?:\s|$)|\n", after[:200], maxsplit=1)[0]
