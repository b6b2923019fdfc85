"""Inline styles of the pages that the server renders without scripts, in the console's colors."""

from __future__ import annotations

import base64
import hashlib

_COLORS = """
:root{color-scheme:light dark;font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
--ground:#f6f7f9;--sheet:#fff;--line:#d8dce3;--text:#1b2330;--quiet:#566074;--accent:#1a5bb8;--on-accent:#fff;
--soft:#e4edfa;--good:#17703f;--bad:#b3261e;--ask:#8a5200}
@media(prefers-color-scheme:dark){:root{--ground:#12151a;--sheet:#191d24;--line:#353d4a;--text:#e7eaf0;
--quiet:#a0abbd;--accent:#84b3ff;--on-accent:#0c1830;--soft:#24344d;--good:#66d29a;--bad:#ff9a91;--ask:#f5bd66}}
"""


def inline_style(rules: str) -> tuple[str, str]:
    """Return the style of a page and its hash for the content security policy.

    Args:
        rules: CSS rules of the page, which may use the console's color variables.
    """
    style = _COLORS + rules
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return style, f"sha256-{digest}"
