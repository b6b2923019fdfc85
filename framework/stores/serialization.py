"""Serialization of state: strict types, checksums, encryption, and checkpoint validation."""

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

_CHECKSUM_SUFFIX = "/crc32"
_FIELDS = {
    "v": int,
    "id": str,
    "channel_values": dict,
    "channel_versions": dict,
    "versions_seen": dict,
}


class StrictSerializer(JsonPlusSerializer):
    """Serializer that restores only known safe types and detects corrupted data.

    Args:
        checksum: True to add a checksum. Encrypted data already includes a stronger one.
    """

    def __init__(self, *, checksum: bool = True) -> None:
        super().__init__(allowed_msgpack_modules=None)
        self._checksum = checksum

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Serialize a value to bytes with a checksum, unless checksums are disabled.

        Raises:
            PersistenceError: The value has a type that cannot be serialized.
        """
        try:
            kind, data = super().dumps_typed(obj)
        except (TypeError, ValueError, RecursionError) as exc:
            raise PersistenceError(
                f"A state value cannot be serialized: {exc}.",
                fix="Use plain JSON values: text, 64-bit numbers, lists, and dictionaries.",
            ) from exc
        if not self._checksum:
            return kind, data
        return f"{kind}{_CHECKSUM_SUFFIX}", zlib.crc32(data).to_bytes(4) + data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Deserialize a value and verify its checksum.

        Data written by LangGraph's own serializer is also accepted.

        Raises:
            ValueError: The checksum does not match.
        """
        kind, content = data
        if kind.endswith(_CHECKSUM_SUFFIX):
            kind, checksum, content = (
                kind.removesuffix(_CHECKSUM_SUFFIX),
                content[:4],
                bytes(content[4:]),
            )
            if zlib.crc32(content).to_bytes(4) != bytes(checksum):
                raise ValueError("the checksum does not match the stored data")
        if kind == "msgpack":
            return unpack_checkpoint(content, self._unpack_ext_hook)
        return super().loads_typed((kind, content))


def make_serializer(encryption_key: str | bytes | None) -> SerializerProtocol:
    """Create the checkpoint serializer, which restores only known safe types.

    Args:
        encryption_key: AES key of 16, 24, or 32 bytes, or a string of the same encoded length.
            ``None`` disables encryption.

    Raises:
        ConfigurationError: The key has an invalid length.
        MissingExtraError: The encryption package is not installed.
    """
    if encryption_key is None:
        return StrictSerializer()
    key = encryption_key.encode() if isinstance(encryption_key, str) else bytes(encryption_key)
    if len(key) not in {16, 24, 32}:
        raise ConfigurationError(
            f"The encryption key has {len(key)} bytes: expected 16, 24, or 32. Fix: generate a key, for"
            " example with 'openssl rand -hex 16'."
        )
    require_extra("Crypto.Cipher", "encryption")
    return EncryptedSerializer.from_pycryptodome_aes(StrictSerializer(checksum=False), key=key)


@contextmanager
def wrap_read_errors(thread_id: Any, description: str = "") -> Iterator[None]:
    """Context manager that converts serializer errors to ``PersistenceError``.

    Raises:
        PersistenceError: The data cannot be deserialized.
    """
    try:
        yield
    except PersistenceError:
        raise
    except (ValueError, TypeError, LookupError, NotImplementedError, AssertionError) as exc:
        raise PersistenceError(
            f"{description or f'A checkpoint of thread_id {thread_id!r}'} cannot be read"
            f" ({type(exc).__name__}: {exc}).",
            fix="Use the encryption key that it was written with. If it is damaged, restore the"
            " database or delete the thread.",
            is_unreadable=True,
        ) from exc


def serialize_to_text(serde: Any, value: Any) -> str:
    """Serialize a value to a string with a saver's serializer.

    The string is encrypted if the saver encrypts checkpoints.
    """
    kind, data = serde.dumps_typed(value)
    return f"{kind}:{base64.b64encode(data).decode()}"


def deserialize_text(serde: Any, text: str, description: str) -> Any:
    """Restore a value from a string created by :func:`serialize_to_text`.

    Raises:
        PersistenceError: The string cannot be deserialized.
    """
    kind, _, data = text.partition(":")
    with wrap_read_errors(None, f"The data {description}"):
        return serde.loads_typed((kind, base64.b64decode(data)))


def validate_checkpoint(checkpoint_tuple: CheckpointTuple | None) -> CheckpointTuple | None:
    """Validate the fields of a checkpoint, and keep later checkpoint IDs ahead of its ID.

    Checkpoints are ordered by IDs that begin with a timestamp. Without this adjustment, a
    checkpoint created after the clock was set back would sort before its parent and never be
    found.

    Raises:
        PersistenceError: A field is missing or has the wrong type.
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
            f"A checkpoint of thread {thread!r} is damaged: a field is missing or has the wrong type.",
            fix="Restore the database, or delete the thread.",
            is_unreadable=True,
        )
    advance_checkpoint_ids(checkpoint["id"])
    return checkpoint_tuple
