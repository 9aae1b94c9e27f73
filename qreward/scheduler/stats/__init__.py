"""Measurements of endpoints: latencies, output lengths, stalls."""
