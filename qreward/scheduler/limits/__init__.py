"""How much one endpoint may be sent: concurrency, rate, tokens, cooldown."""
