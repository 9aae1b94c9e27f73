"""The address of the documentation, for messages that name one of its pages. This module imports no other module of the package."""

from __future__ import annotations

DOCUMENTATION = "docs/"
"""The folder of the pages in the repository. Once a site is published, set this to its URL, with a slash at the end."""


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
