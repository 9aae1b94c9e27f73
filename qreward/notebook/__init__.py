"""Display in notebooks: statistics, batch results, verdicts and streamed answers as HTML tables, with small plots as inline SVG.

All external text is escaped. Colours are inherited from the page, so that dark and light themes both work. The size of a table, and of
a card of a streamed answer, is bounded. Only ``display`` reads streams and writes output; the other modules map values to text.
"""
