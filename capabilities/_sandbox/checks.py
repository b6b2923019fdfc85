"""Validation of sandbox output, which is untrusted until it passes these checks."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from capgraph.configs.logger import escape_control_characters

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Chunks that an image needs; text, profiles, and unknown chunks are dropped.
_ALLOWED_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"pHYs", b"gAMA", b"sRGB"}
_CHANNELS_BY_COLOR_TYPE = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_MAX_SIDE_PIXELS, _MAX_PIXELS = 10_000, 40_000_000


class HostileOutputError(ValueError):
    """Raised if output of the sandbox process is invalid or exceeds a limit."""


def decode_output(data: bytes, max_bytes: int, total_bytes: int) -> str:
    r"""Decode captured output, escape control characters, and append a note if it was truncated.

    Example:
        >>> decode_output(b"a\x1b[31mb", 100, 7)
        'a\\x1b[31mb'
        >>> decode_output(b"abcdef", 3, 6)
        'abc\n[truncated: 3 of 6 bytes shown]'
    """
    text = data[:max_bytes].decode("utf-8", errors="replace").replace("\r\n", "\n")
    text = "\n".join(map(escape_control_characters, text.split("\n")))
    if total_bytes > max_bytes:
        text += f"\n[truncated: {max_bytes} of {total_bytes} bytes shown]"
    return text


def parse_message(line: bytes) -> dict[str, Any]:
    """Parse one line that the sandbox process sent as strict JSON.

    Example:
        >>> parse_message(b'{"event": "ready"}')
        {'event': 'ready'}

    Raises:
        HostileOutputError: The message is not a JSON object.
    """

    def refuse(constant: str) -> None:
        raise HostileOutputError(f"{constant} is not valid JSON")

    try:
        message = json.loads(line, parse_constant=refuse)
    except RecursionError:
        raise HostileOutputError("the JSON message is nested too deeply") from None
    except ValueError as error:
        raise HostileOutputError(f"the message is not valid JSON: {error}") from None
    if not isinstance(message, dict):
        raise HostileOutputError("the message is not a JSON object")
    return message


def check_json(value: Any, max_depth: int) -> None:
    """Raise an error for JSON data that a checkpoint cannot store.

    Example:
        >>> check_json({"a": [1, 2.5, None]}, max_depth=4)

    Raises:
        HostileOutputError: The data is nested too deeply, has huge integers or non-finite numbers,
            or contains invalid Unicode.
    """
    pending = [(value, 0)]
    while pending:
        item, level = pending.pop()
        if level > max_depth:
            raise HostileOutputError(f"result is nested more than {max_depth} levels deep")
        if isinstance(item, dict):
            pending.extend((part, level + 1) for pair in item.items() for part in pair)
        elif isinstance(item, list):
            pending.extend((part, level + 1) for part in item)
        elif isinstance(item, str):
            if not item.isascii() and any("\ud800" <= character <= "\udfff" for character in item):
                raise HostileOutputError("result contains text that is not valid Unicode")
        elif isinstance(item, float):
            if item != item or abs(item) == float("inf"):
                raise HostileOutputError("result contains a number that JSON cannot represent")
        elif isinstance(item, int) and not -(2**63) <= item < 2**63:
            raise HostileOutputError(
                "result contains an integer of more than 64 bits; use str or float"
            )


def sanitize_png(data: bytes) -> tuple[bytes, int, int]:
    """Validate a PNG image with its pixel data, and rewrite it with only the allowed chunks.

    Returns:
        The rewritten file, its width, and its height.

    Raises:
        HostileOutputError: The data is not exactly one valid image of acceptable size.
    """
    if not data.startswith(_PNG_SIGNATURE):
        raise HostileOutputError("not a PNG file")
    chunks, pixels = [_PNG_SIGNATURE], []
    header: tuple[int, ...] | None = None
    position, kind = len(_PNG_SIGNATURE), b""
    while kind != b"IEND":
        if position + 12 > len(data):
            raise HostileOutputError("the PNG file is truncated")
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if end > len(data):
            raise HostileOutputError("the PNG file is truncated")
        body = data[position + 8 : end - 4]
        if zlib.crc32(kind + body) != int.from_bytes(data[end - 4 : end]):
            raise HostileOutputError(
                "the PNG file is damaged: a chunk has the wrong checksum or type"
            )
        if (kind == b"IHDR") != (header is None):
            raise HostileOutputError("the PNG header is missing or repeated")
        if kind == b"IHDR":
            header = _check_header(body)
        elif kind == b"IDAT":
            pixels.append(body)
        if kind in _ALLOWED_CHUNKS:
            chunks.append(data[position:end])
        position = end
    assert header is not None  # the loop refuses any chunk before the header
    _check_pixels(b"".join(pixels), header)
    return b"".join(chunks), header[0], header[1]


def _check_header(body: bytes) -> tuple[int, ...]:
    """Check the size, depth, and color type of an image."""
    if len(body) != 13:
        raise HostileOutputError("the PNG header has the wrong length")
    width, height, depth, color, packing, filtering, interlace = struct.unpack(">IIBBBBB", body)
    if not (
        0 < width <= _MAX_SIDE_PIXELS
        and 0 < height <= _MAX_SIDE_PIXELS
        and width * height <= _MAX_PIXELS
    ):
        raise HostileOutputError(f"the image of {width} x {height} pixels is too large")
    if (
        color not in _CHANNELS_BY_COLOR_TYPE
        or depth not in (1, 2, 4, 8, 16)
        or packing
        or filtering
    ):
        raise HostileOutputError("the PNG header has an unsupported depth or color type")
    if interlace:
        raise HostileOutputError("interlaced PNG files are not supported")
    return width, height, depth, color


def _check_pixels(packed: bytes, header: tuple[int, ...]) -> None:
    """Decompress the pixel data in pieces and check that its length matches the header."""
    width, height, depth, colour = header
    expected = height * (1 + (width * depth * _CHANNELS_BY_COLOR_TYPE[colour] + 7) // 8)
    unpacker, length = zlib.decompressobj(), 0
    try:
        while length <= expected:
            piece = unpacker.decompress(packed, 1 << 20)
            packed = unpacker.unconsumed_tail
            length += len(piece)
            if not piece and not packed:
                break
    except zlib.error:
        raise HostileOutputError("the pixel data is damaged") from None
    if length != expected or not unpacker.eof:
        raise HostileOutputError("the pixel data does not match the header")
