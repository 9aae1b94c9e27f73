"""Tests of this folder may be async functions."""

from shared_tools import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
