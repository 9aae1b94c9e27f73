"""The HTTP transport: HTTP backends, and the conversion of responses and errors to outcomes.

This package does not depend on how requests are scheduled.
"""
