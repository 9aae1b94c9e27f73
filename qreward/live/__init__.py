"""The state of a running client, for people who look at it."""
