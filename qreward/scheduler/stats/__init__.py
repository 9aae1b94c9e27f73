"""What is measured of an endpoint: latencies, output lengths, silence."""
