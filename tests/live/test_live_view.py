"""What the terminal, the page and notebooks show of the same documents."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from rich.console import Console

from qreward.live import view
from qreward.live.directory import Process
from qreward.live.page import PAGE, PageServer
