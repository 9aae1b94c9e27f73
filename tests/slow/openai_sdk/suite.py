"""All that the fast tests say of the drop-in, for whatever openai SDK is installed here."""

from __future__ import annotations

from test_openai_errors import *  # noqa: F403
from test_openai_facade import *  # noqa: F403
from test_openai_load import *  # noqa: F403
from test_openai_shapes import *  # noqa: F403
from test_openai_transport import *  # noqa: F403
