"""No test here depends on the telemetry settings of whoever runs it."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_settings_of_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment says nothing of telemetry."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
