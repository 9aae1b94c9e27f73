"""Sends requests: the backend of the engine, its HTTP transports, and the conversion of responses and errors to outcomes."""
