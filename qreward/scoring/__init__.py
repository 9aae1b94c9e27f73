"""Merge the items of many calls and batches into requests: scores, labels, rankings, embeddings, completions and moderations."""
