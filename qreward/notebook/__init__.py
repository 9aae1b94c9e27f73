"""Statistics as HTML, for notebooks: words and tables, small plots as inline SVG, and what is made of them. Pure: values in, text out.

Everything that comes from outside is escaped. Colours are the page's own, so that a dark theme is as good as a light one. The size of what
comes out is bounded, however much goes in. This room knows what statistics are; it must not know who asks for HTML, or where it is shown.
"""
