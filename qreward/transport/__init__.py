"""The only room that knows HTTP: engines, codecs, and how an answer becomes an outcome. Knows nothing of the scheduler."""
