"""Which files may be read at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.base import ValidationError, require_extra


def check_folder(name: str | Path, settings: Mapping[str, Any]) -> Path:
    """Return the resolved path of a file that the settings allow to be read.

    What is said about a file outside of the folders does not depend on whether it exists.

    Args:
        name: What the user, the state or a plan names.
        settings: ``data_folders`` lists folders and single files; none allows nothing. Files of
            the package ``vega_datasets`` are always allowed.

    Raises:
        ValidationError: The path, with all links followed, lies elsewhere.
    """
    try:
        path = Path(name).expanduser().resolve()
        allowed = [Path(item).expanduser().resolve() for item in settings.get("data_folders") or ()]
    except (OSError, RuntimeError, ValueError) as exc:
        raise ValidationError(
            f"{str(name)[:200]!r} is no path.", fix="Give the path of a data file."
        ) from exc
    if any(path == item or item in path.parents for item in allowed) or _is_packaged(path):
        return path
    raise ValidationError(
        f"The data file {Path(name).name!r} lies outside of the folders that may be read.",
        fix="Add its folder to 'data_folders' in the settings, or move the file there.",
    )


def packaged_folder() -> Path:
    """Return the folder of the package ``vega_datasets``."""
    package = require_extra("vega_datasets", "demo")
    return (Path(str(package.__file__)).parent / "_data").resolve()


def _is_packaged(path: Path) -> bool:
    # Looked up by the path itself: the package need not be installed.
    return path.parent.parts[-2:] == ("vega_datasets", "_data") and path.parent == packaged_folder()
