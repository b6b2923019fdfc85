"""The packages that capgraph installs beside this one, and whether Python finds them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("framework", "capabilities", "infrastructure", "configs")
"""Top-level names of the distribution, which another project may use as well."""

_HOME = Path(__file__).parent.parent


def check_neighbour(name: str) -> None:
    """Make sure that a package of ours is not hidden by somebody else's of the same name.

    Raises:
        ImportError: It is; says where the other one lies.
    """
    found = find_spec(name)
    places = [Path(place) for place in (found and found.submodule_search_locations) or ()]
    if found is not None and found.origin is not None and not places:
        places = [Path(found.origin)]
    if places and not any(place.parent == _HOME for place in places):
        raise ImportError(
            f"capgraph needs its package {name!r}, and Python finds another one in"
            f" {str(places[0])!r}. Fix: rename that package, or take its folder off the path;"
            f" capgraph installs {', '.join(PACKAGES)}.",
            name=name,
        )
