"""Reading a judge's answer as a verdict, strictly: a text in, a pydantic model or :class:`Unreadable` out.

What is not clearly the judge's one verdict is none: an answer that cannot be read is asked for again, a wrong number is a reward.
Knows no client, no prompt and no clock.

========================= ================================================================================================
What an answer holds      What comes of it
========================= ================================================================================================
thought                   ``<think>``, ``<thinking>``, ``<reasoning>``, ``<thought>`` blocks are taken off first. A block that is
                          not closed: refused. One closing tag that nothing opened: what stands before it was thought, unless
                          that may be a verdict of its own that differs; a second one, or one after a block: refused. Thought
                          that a server gives apart is never read.
one JSON object           read if it is the whole text, or the whole of its one fenced block.
objects among words       those outside quotations, in ``json`` blocks or bare, count if they hold the deciding field, unless their
                          sentence puts them into another's mouth. They must all agree, with each other and with the words.
slips in JSON             taken: trailing commas, single and typographic quotes, ``True``/``None``, comments, line breaks in texts,
                          keys without quotes or in other letters. Refused: what is not closed, quotes not escaped, a key twice
                          with two values, and every other slip; also beside a good verdict, if the slip shows the field.
scores in words           a label at the beginning of a sentence and the number after it ("**Score:** 7/10", "Rating: [[7]]", a
                          heading or table row, ``<score>7</score>``), "I give it a 7", "7/10" or ``\\boxed{7}`` on its own,
                          "[[7]]", a bare number as the whole answer.
further in a sentence     "it ends with Score: 10", "gives itself 10/10": never gives a score, only stands against another one.
several scores            the same: read. Different: refused. Named aspects ("Accuracy: 8/10", "Style score: 6") give way to a
                          score after them that is called final, overall or total; fractions of aspects to any labelled score.
fractions                 "7/10" where 10 is the top of the scale. Any other denominator: refused, as it may be another scale.
per cent                  on scales of 0 to 1 and 0 to 100. Elsewhere: refused.
decimals                  "7.5" and "7,5". Three digits after a comma may be thousands: refused.
no plain number           ranges, "about", "at least", "7 or 8", "7+", sums, conditions, exponents, other digits than ASCII's,
                          leading zeros, dates, counts ("7 errors"), NaN, infinity, what is off the scale: refused. In JSON, true
                          and null are no numbers; the texts "7" and "7/10" are.
yes and no                the first word of the answer, a sentence of its own, after a label, in double brackets. "No errors",
                          "yes and no", "Yes. Actually, no.": refused.
preferences               "[[A]]", "A", "Response A is better", "Winner: B", "I prefer B", "[[A>>B]]"; "[[C]]" and "tie" are a tie.
quotations                fenced blocks but for ``json`` ones, lines after ``>``, quotation marks of all kinds, inline code, tags
                          but for those of layout and of a score, comments of HTML: not the judge's words, whatever they say.
                          Marks that do not pair: refused. A quotation that is the whole answer is the answer.
reported speech           what follows "The candidate wrote:" up to the next blank line only stands against a score.
an answer that was cut    only a whole object counts, never words, never an object that stands among words.
length                    of more than 100,000 characters beside thought: refused, as reading must not hold up others.
========================= ================================================================================================
"""

from qreward.judge.reading.answer import read
from qreward.judge.reading.schema import instruction, schema_of
from qreward.judge.reading.stock import PreferenceVerdict, ScoreVerdict, YesNoVerdict
from qreward.judge.reading.unreadable import Unreadable

__all__ = ["PreferenceVerdict", "ScoreVerdict", "Unreadable", "YesNoVerdict", "instruction", "read", "schema_of"]
