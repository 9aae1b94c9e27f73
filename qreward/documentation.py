"""The address of the documentation, for messages that name one of its pages. Imports no other module."""

from __future__ import annotations

DOCUMENTATION = "docs/"
"""The folder of the pages in the repository. When a site is published, its URL, ending with a slash."""


def page(path: str, anchor: str = "") -> str:
    """Return the address of a page of the documentation, or of one of its sections.

    Args:
        path: path of the page below ``DOCUMENTATION``, without its ending.
        anchor: the heading of the section, in lower case.

    Example:
        >>> page("reference/errors", "ratelimited")
        'docs/reference/errors.md#ratelimited'
    """
    is_site = DOCUMENTATION.startswith("https://")
    return f"{DOCUMENTATION}{path}{'/' if is_site else '.md'}{f'#{anchor}' if anchor else ''}"
