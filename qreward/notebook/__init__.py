"""Display in notebooks: statistics, batch results, verdicts and streamed answers as HTML tables, with small plots as inline SVG.

All external text is escaped. Colours are inherited from the page, so dark and light themes both work. The size of a table, and of the card
of a streamed answer, is bounded. Only the module ``display`` reads streams and writes output. All other modules convert values to text.
"""
