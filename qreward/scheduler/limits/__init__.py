"""The limits of one endpoint: concurrency, request rate, token rate, cooldown."""
