"""Codecs of decisions: typed questions about one input, and a probability for every option."""
