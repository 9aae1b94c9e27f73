"""Tests that are coroutines run in a loop of their own, in real time."""

from shared_tools import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
