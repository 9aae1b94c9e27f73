"""The HTTP transport: HTTP backends, and the conversion of responses and errors to outcomes. Must not know how requests are scheduled."""
