"""Display in notebooks: statistics, batch results, verdicts and streamed answers as HTML tables, with small plots as inline SVG."""
