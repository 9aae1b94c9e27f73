"""The address of the documentation, for messages that name one of its pages. This module imports no other module of the package."""

from __future__ import annotations

DOCUMENTATION = "documentation page "
"""What precedes the path of a page. An installed package has no files of the documentation, so no file is named. Once a site is published,
set this to its URL, with a slash at the end."""


def page(path: str, anchor: str = "") -> str:
    """Return the address of a page of the documentation, or of one of its sections.

    Args:
        path: path of the page in the documentation, without its ending.
        anchor: the heading of the section, in lower case.

    Example:
        >>> page("reference/errors", "ratelimited")
        'documentation page reference/errors#ratelimited'
    """
    slash = "/" if DOCUMENTATION.startswith("https://") else ""
    return f"{DOCUMENTATION}{path}{slash}{f'#{anchor}' if anchor else ''}"
