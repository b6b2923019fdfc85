"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path


def write_whole(path: str | os.PathLike[str], text: str, *, mode: int = 0o666) -> None:
    """Write a text file so that whoever reads it sees the old text or the new one, never half.

    Args:
        path: The file; its folder is made.
        text: What it is to hold.
        mode: Who may read and write it, less what the process's umask takes away.

    Raises:
        OSError: The disk or the permissions do not allow it; an old file is left as it was.
    """
    target = Path(path)
    content = text.encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=mode)) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
