"""The page of the reward server lists each setting as it is."""

from __future__ import annotations

import json
from pathlib import Path

from qreward.server import ServerConfig

PAGE = Path(__file__).parents[2] / "docs" / "server.md"


def test_the_page_lists_every_setting_with_its_default() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    settings = {row[0].strip("`"): row[1] for row in rows if len(row) == 4 and row[0].strip("`") in ServerConfig.model_fields}
    assert settings == {name: f"`{json.dumps(field.default)}`" for name, field in ServerConfig.model_fields.items()}
