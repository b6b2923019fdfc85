"""What every saver of ours makes sure of when it reads and writes."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from capgraph.base.errors import ConfigurationError, PersistenceError, require_extra
from capgraph.langgraph_compat import advance_checkpoint_ids, unpack_checkpoint

_CHECKED = "/crc32"
_FIELDS = {
    "v": int,
    "id": str,
    "channel_values": dict,
    "channel_versions": dict,
    "versions_seen": dict,
}


class StrictSerializer(JsonPlusSerializer):
    """Rebuilds only known safe types, and notices bytes that changed on the disk.

    Args:
        checksum: Whether to add one; what is encrypted has a stronger one already.
    """

    def __init__(self, *, checksum: bool = True) -> None:
        super().__init__(allowed_msgpack_modules=None)
        self._checksum = checksum

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Turn a value into bytes.

        Raises:
            PersistenceError: It cannot be saved.
        """
        try:
            kind, data = super().dumps_typed(obj)
        except (TypeError, ValueError, RecursionError) as exc:
            raise PersistenceError(
                f"A value of the state cannot be saved: {exc}.",
                fix="Keep to plain JSON: text, numbers of 64 bits, lists and dictionaries.",
            ) from exc
        if not self._checksum:
            return kind, data
        return f"{kind}{_CHECKED}", zlib.crc32(data).to_bytes(4) + data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Turn bytes into a value; those of LangGraph's own serializer are read as well.

        Raises:
            ValueError: The bytes are not those that were written.
        """
        kind, content = data
        if kind.endswith(_CHECKED):
            kind, sum_, content = kind.removesuffix(_CHECKED), content[:4], bytes(content[4:])
            if zlib.crc32(content).to_bytes(4) != bytes(sum_):
                raise ValueError("the checksum does not fit")
        if kind == "msgpack":
            return unpack_checkpoint(content, self._unpack_ext_hook)
        return super().loads_typed((kind, content))


def make_serializer(encryption_key: str | bytes | None) -> SerializerProtocol:
    """Return the strict serializer: only known safe types are rebuilt from a database.

    Args:
        encryption_key: 16, 24 or 32 bytes, or text that encodes to as many; ``None`` for plain.

    Raises:
        ConfigurationError: The key has another length.
        MissingExtraError: Encryption is asked for and its package is not installed.
    """
    if encryption_key is None:
        return StrictSerializer()
    key = encryption_key.encode() if isinstance(encryption_key, str) else bytes(encryption_key)
    if len(key) not in {16, 24, 32}:
        raise ConfigurationError(
            f"The encryption key has {len(key)} bytes. Fix: give 16, 24 or 32 bytes, for example"
            " from 'openssl rand -hex 16'."
        )
    require_extra("Crypto.Cipher", "encryption")
    return EncryptedSerializer.from_pycryptodome_aes(StrictSerializer(checksum=False), key=key)


@contextmanager
def wrap_read_errors(thread: Any, what: str = "") -> Iterator[None]:
    """Turn what a serializer raises over foreign bytes into one clear error.

    Raises:
        PersistenceError: The bytes cannot be read.
    """
    try:
        yield
    except PersistenceError:
        raise
    except (ValueError, TypeError, LookupError, NotImplementedError, AssertionError) as exc:
        raise PersistenceError(
            f"{what or f'A checkpoint of thread {thread!r}'} cannot be read"
            f" ({type(exc).__name__}: {exc}).",
            fix="Give the encryption key that it was written with; if it is damaged, restore the"
            " database, or delete the thread.",
            is_unreadable=True,
        ) from exc


def serialize_to_text(serde: Any, value: Any) -> str:
    """Return a value as text of a saver's own serializer: encrypted where checkpoints are."""
    kind, data = serde.dumps_typed(value)
    return f"{kind}:{base64.b64encode(data).decode()}"


def deserialize_text(serde: Any, text: str, description: str) -> Any:
    """Read what :func:`as_text` wrote.

    Raises:
        PersistenceError: It cannot be read.
    """
    kind, _, data = text.partition(":")
    with wrap_read_errors(None, f"What is kept {description}"):
        return serde.loads_typed((kind, base64.b64decode(data)))


def validate_checkpoint(checkpoint_tuple: CheckpointTuple | None) -> CheckpointTuple | None:
    """Check the form of a checkpoint, and keep the identities of new ones after it.

    Checkpoints are put in order by identities that begin with the time. After the clock was set
    back (or on a machine whose clock is behind), a new checkpoint would sort before the one it
    follows and never be found again.

    Raises:
        PersistenceError: It is no checkpoint.
    """
    if checkpoint_tuple is None:
        return None
    checkpoint: Any = checkpoint_tuple.checkpoint
    good = isinstance(checkpoint, dict) and all(
        isinstance(checkpoint.get(name), kind) for name, kind in _FIELDS.items()
    )
    if not good:
        thread = checkpoint_tuple.config["configurable"].get("thread_id")
        raise PersistenceError(
            f"A checkpoint of thread {thread!r} has not the form of one.",
            fix="Restore the database, or delete the thread.",
            is_unreadable=True,
        )
    advance_checkpoint_ids(checkpoint["id"])
    return checkpoint_tuple
