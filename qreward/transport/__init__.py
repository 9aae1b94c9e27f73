"""The HTTP transport: HTTP backends, and the conversion of responses and errors to outcomes.

This package must not know how requests are scheduled.
"""
