"""The HTTP transport: HTTP backends, and the conversion of responses and errors to outcomes."""
