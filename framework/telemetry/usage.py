"""Usage and cost of model calls: token counts and prices.

An unknown price never counts as zero. Instead, the cost is ``None``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from capgraph.base.errors import ValidationError
from capgraph.helpers.number_validation import check_number

_MILLION = 1_000_000
_TTL = {"5m": "cache_write_5min_per_million", "1h": "cache_write_1h_per_million"}


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """Token usage of one model call.

    Attributes:
        input_tokens: Number of prompt tokens that were not cached.
        output_tokens: Number of output tokens.
        cache_write_tokens: Number of prompt tokens written to a cache.
        cache_read_tokens: Number of prompt tokens read from a cache.
        cache_ttl: Lifetime of cached tokens, ``5m`` or ``1h``, if the provider distinguishes
            them.
        tool_calls: Number of tool calls requested in the response.

    Raises:
        ValidationError: A number is negative or not an integer.

    >>> UsageSnapshot(input_tokens=90, output_tokens=10).total_tokens
    100
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0
    cache_ttl: str | None = None
    tool_calls: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "cache_ttl":
                continue
            check_number(name, value, integer=True)

    @property
    def prompt_tokens(self) -> int:
        """Total number of prompt tokens."""
        return self.input_tokens + self.cache_write_tokens + self.cache_read_tokens

    @property
    def total_tokens(self) -> int:
        """Total number of prompt and output tokens."""
        return self.prompt_tokens + self.output_tokens

    def to_dict(self) -> dict[str, Any]:
        """Return the usage as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> UsageSnapshot:
        """Create a usage snapshot from a dictionary returned by :meth:`to_dict`.

        Unknown keys are ignored.
        """
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})

    def to_json(self) -> str:
        """Return the usage as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, s: str) -> UsageSnapshot:
        """Create a usage snapshot from a JSON string returned by :meth:`to_json`."""
        return cls.from_dict(json.loads(s))

    @classmethod
    def of_message(cls, message: Any) -> UsageSnapshot | None:
        """Return the token usage that a LangChain message reports, or ``None``.

        >>> from langchain_core.messages import AIMessage
        >>> used = {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10}
        >>> UsageSnapshot.of_message(AIMessage("Hi", usage_metadata=used)).total_tokens
        10
        """
        used = getattr(message, "usage_metadata", None)
        if not used:
            return None
        detail = used.get("input_token_details") or {}
        read, written = detail.get("cache_read") or 0, detail.get("cache_creation") or 0
        return cls(
            input_tokens=max(0, used.get("input_tokens", 0) - read - written),
            output_tokens=used.get("output_tokens", 0),
            cache_write_tokens=written,
            cache_read_tokens=read,
            tool_calls=len(getattr(message, "tool_calls", ())),
        )


@dataclass(frozen=True, slots=True)
class ModelPricing:
    """Prices of a model in US dollars per million tokens.

    Attributes:
        input_per_million: Price of prompt tokens.
        output_per_million: Price of output tokens.
        cache_write_per_million: Price of tokens written to a cache.
        cache_read_per_million: Price of tokens read from a cache.
        cache_write_5min_per_million: Price of tokens cached for five minutes. 0 uses
            ``cache_write_per_million``.
        cache_write_1h_per_million: Price of tokens cached for one hour. 0 uses
            ``cache_write_per_million``.

    Raises:
        ValidationError: A price is negative or not a number.

    >>> ModelPricing(1.0, 4.0).cost(UsageSnapshot(input_tokens=1000, output_tokens=250))
    0.002
    """

    input_per_million: float
    output_per_million: float
    cache_write_per_million: float = 0.0
    cache_read_per_million: float = 0.0
    cache_write_5min_per_million: float = 0.0
    cache_write_1h_per_million: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_number(name, value)

    def cost(self, usage: UsageSnapshot) -> float:
        """Return the cost of a model call in US dollars."""
        ttl_price = getattr(self, _TTL.get(usage.cache_ttl or "", ""), 0.0)
        return (
            usage.input_tokens * self.input_per_million
            + usage.output_tokens * self.output_per_million
            + usage.cache_write_tokens * (ttl_price or self.cache_write_per_million)
            + usage.cache_read_tokens * self.cache_read_per_million
        ) / _MILLION


class PricingAlreadyRegisteredError(ValidationError):
    """Raised when registering a price for a model that already has one.

    Attributes:
        model: Name of the model.
    """

    model: str = ""


class PriceTable:
    """Table of model prices, with ``genai-prices`` (extra ``costs``) as a fallback.

    Model names are case-insensitive. An exact name takes precedence over a prefix, and longer
    prefixes take precedence over shorter ones. A prefix must end at a separator, so
    ``gpt-5-mini`` matches ``gpt-5-mini-2026-01-01``.

    Args:
        prices: Prices by model name.
        use_genai_prices: True to look up unregistered models in ``genai-prices``.

    >>> table = PriceTable({"house-model": ModelPricing(1.0, 2.0)})
    >>> table.cost("House-Model-v2", UsageSnapshot(input_tokens=1_000_000))
    1.0
    >>> table.cost("nobody-knows", UsageSnapshot(input_tokens=1)) is None
    True
    """

    def __init__(
        self, prices: Mapping[str, ModelPricing] | None = None, *, use_genai_prices: bool = True
    ) -> None:
        self._prices = {name.lower(): price for name, price in (prices or {}).items()}
        self._use_genai_prices = use_genai_prices
        self._lock = threading.Lock()

    @staticmethod
    @cache
    def of_process() -> PriceTable:
        """Return the process-wide default price table."""
        return PriceTable()

    def register(
        self,
        model: str,
        pricing: ModelPricing,
        *,
        on_conflict: Literal["overwrite", "error", "keep"] = "overwrite",
    ) -> None:
        """Register the price of a model. See :func:`register_pricing`."""
        if not model.strip() or on_conflict not in ("overwrite", "error", "keep"):
            raise ValidationError(
                f"The model name {model!r} or on_conflict={on_conflict!r} is invalid.",
                fix="Pass a model name, and 'overwrite', 'error', or 'keep'.",
            )
        name = model.strip().lower()
        with self._lock:
            if name in self._prices and on_conflict != "overwrite":
                if on_conflict == "error":
                    raise PricingAlreadyRegisteredError(
                        f"The model {model!r} already has a price.",
                        fix="Pass on_conflict='overwrite'.",
                        model=model,
                    )
                return
            self._prices[name] = pricing

    def find(self, model: str) -> ModelPricing | None:
        """Return the registered price that applies to a model, or ``None``."""
        name = model.strip().lower()
        with self._lock:
            if name in self._prices:
                return self._prices[name]
            prefixes = [
                k for k in self._prices if name.startswith(k) and not name[len(k)].isalnum()
            ]
            return self._prices[max(prefixes, key=len)] if prefixes else None

    def cost(self, model: str, usage: UsageSnapshot) -> float | None:
        """Return the cost of a model call in US dollars, or ``None`` if the price is unknown."""
        pricing = self.find(model)
        if pricing is not None:
            return pricing.cost(usage)
        return _genai_prices_cost(model, usage) if self._use_genai_prices else None


def _genai_prices_cost(model: str, usage: UsageSnapshot) -> float | None:
    try:
        import genai_prices
    except ImportError:
        return None
    used = genai_prices.Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cache_read_tokens=usage.cache_read_tokens,
    )
    provider, _, name = model.partition(":")
    # A colon is part of some names; in others, it separates the provider.
    for ref, by in ((model, None), (name, provider)):
        with suppress(LookupError):
            if ref:
                return float(genai_prices.calc_price(used, ref, provider_id=by).total_price)
    return None


def register_pricing(
    model: str,
    pricing: ModelPricing,
    *,
    on_conflict: Literal["overwrite", "error", "keep"] = "overwrite",
    table: PriceTable | None = None,
) -> None:
    """Register the price of a model, so that the cost of its calls can be calculated.

    Args:
        model: Name of the model, or a prefix of the name.
        pricing: Price of the model.
        on_conflict: Action if the model already has a price: ``overwrite``, ``error``, or
            ``keep``.
        table: Table to change. Defaults to the process-wide table, which is not used by graphs
            and trackers that have their own table.

    Raises:
        PricingAlreadyRegisteredError: The model already has a price, and ``on_conflict`` is
            ``error``.

    >>> register_pricing("house-model", ModelPricing(1.0, 2.0), table=PriceTable())
    """
    (table or PriceTable.of_process()).register(model, pricing, on_conflict=on_conflict)


def load_pricing_from_file(path: str | Path, *, table: PriceTable | None = None) -> None:
    """Register the model prices in a JSON file of the form ``{"models": {name: prices}}``.

    Args:
        path: Path of the file. Prices have the field names of :class:`ModelPricing`.
        table: Table to change, as for :func:`register_pricing`.

    Raises:
        ValidationError: The file has an invalid format. In that case, no prices are registered.
    """
    try:
        models = json.loads(Path(path).read_text("utf-8"))["models"]
        found = {model: ModelPricing(**prices) for model, prices in models.items()}
    except (LookupError, TypeError, AttributeError, ValueError) as exc:
        cause = f"{exc} is missing" if isinstance(exc, KeyError) else getattr(exc, "message", exc)
        raise ValidationError(
            f"The price file {str(path)!r} is invalid: {cause}",
            fix='Use the format {"models": {"name": {"input_per_million": 1, "output_per_million": 2}}}.',
        ) from exc
    for model, pricing in found.items():
        register_pricing(model, pricing, table=table)


def has_pricing(model: str, *, table: PriceTable | None = None) -> bool:
    """Return True if the price of a model is known.

    >>> has_pricing("nobody-knows")
    False
    """
    return (table or PriceTable.of_process()).cost(model, UsageSnapshot()) is not None


def format_cost(cost: float | None) -> str:
    """Format a cost in US dollars, with four decimals below one cent and two otherwise.

    ``None`` is formatted as ``unknown``.

    >>> format_cost(0.0042), format_cost(1.5), format_cost(None)
    ('$0.0042', '$1.50', 'unknown')
    """
    if cost is None:
        return "unknown"
    return f"${cost:.4f}" if 0 < cost < 0.01 else f"${cost:.2f}"
