"""Rate limits for requests and tokens per minute, counted per key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from capgraph.base.errors import ConfigurationError, ErrorSeverity, LimitError
from capgraph.base.ports import Attempt, CallNext, normalize_user_id
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.clock import Clock, as_clock, current_clock
from capgraph.helpers.number_validation import check_number
from capgraph.pipeline.run_config import billing_subject
from capgraph.pipeline.step_execution import current_execution
from capgraph.stores.atomic_values import ChangeFunction, log_and_suppress
from capgraph.stores.database import SqlTables
from capgraph.stores.persistence import open_values
from capgraph.telemetry import Status, emit

_MINUTE = 60.0
_TOLERANCE = 1e-9  # relative rounding error of adding fractions of seconds


class RateLimitExceededError(LimitError):
    """Raised if a call would exceed a configured rate limit.

    Attributes:
        key: Key of the limit.
        retry_after: Seconds until a call is possible. ``None`` if it never is.
        bucket_name: Exceeded limit: ``requests``, ``input_tokens``, or ``output_tokens``.
        tokens: Amount that the call requested from the limit.
    """

    code = "CG-RATE-LIMIT"
    severity: ErrorSeverity = ErrorSeverity.RETRIABLE
    key: str = ""
    retry_after: float | None = None
    bucket_name: str = ""
    tokens: float = 0


class _Bucket(NamedTuple):
    """Token bucket configuration: its unit, capacity, and refill rate per second."""

    name: str
    capacity: float
    rate: float


class _Reservation(NamedTuple):
    """Result of reserving capacity in all token buckets of a rate limit.

    It contains the seconds to wait, whether the amounts were reserved, and the index of the
    bucket with the longest wait.
    """

    wait_seconds: float
    granted: bool
    bucket_index: int = 0


class RateLimiter:
    """Token buckets for requests, input tokens, and output tokens, separate for each key.

    A caller that must wait reserves its amounts at once and sleeps for exactly the required time.
    Callers are served in order, without polling or locks. A canceled wait returns the amounts.

    Args:
        rpm: Requests per minute; may be below 1.
        input_tpm: Prompt tokens per minute.
        output_tpm: Answer tokens per minute.
        burst: Maximum number of requests at once. Defaults to ``rpm``.
        clock: A ``Clock`` or a function that returns seconds. Defaults to the graph's clock within
            a step or model call, else to the system clock.
        store: Database for the counts, shared by processes: ``sqlite:///file.db``,
            ``postgresql://…``, ``redis://…``, or ``saver`` for the database of the graph's
            checkpointer.

    Raises:
        ConfigurationError: A number is invalid, or there is no limit. The error is a
            ``ValueError``.

    >>> import asyncio
    >>> async def main():
    ...     limiter = RateLimiter(rpm=2, clock=lambda: 0.0)
    ...     return [await limiter.try_acquire("mail") for _ in range(3)]
    >>> asyncio.run(main())
    [True, True, False]
    """

    def __init__(
        self,
        *,
        rpm: float | None = None,
        input_tpm: float | None = None,
        output_tpm: float | None = None,
        burst: float | None = None,
        clock: Clock | Callable[[], float] | None = None,
        store: str | SqlTables | None = None,
    ) -> None:
        limits = {"requests": rpm, "input_tokens": input_tpm, "output_tokens": output_tpm}
        set_limits = {name: number for name, number in limits.items() if number is not None}
        for name, number in set_limits.items():
            check_number(name, number, above=0, error=ConfigurationError)
        self._buckets = [
            _Bucket(name, max(1.0, float(number)), number / _MINUTE)
            for name, number in set_limits.items()
        ]
        if not self._buckets:
            raise ConfigurationError(
                "The rate limiter has no limit: rpm, input_tpm, and output_tpm are None.",
                fix="Pass rpm, input_tpm, or output_tpm.",
            )
        if burst is not None and rpm is not None:
            check_number("burst", burst, minimum=1, error=ConfigurationError)
            self._buckets[0] = self._buckets[0]._replace(capacity=float(burst))
        # Limiters that share a database but have different numbers count separately.
        numbers = (f"{bucket.name}:{bucket.capacity:g}:{bucket.rate:g}" for bucket in self._buckets)
        self._prefix = f"rate/{'/'.join(numbers)}/"
        self.counts_tokens: bool = input_tpm is not None or output_tpm is not None
        self._own_clock = as_clock(clock) if clock is not None else None
        self._values = open_values(store)

    @property
    def _clock(self) -> Clock:
        return self._own_clock or current_clock()

    async def try_acquire(
        self, key: str, *, requests: float = 1, input_tokens: float = 0, output_tokens: float = 0
    ) -> bool:
        """Reserve requests and tokens in the rate limit without waiting.

        Return True on success, or False if the rate limit currently has too little capacity.

        Raises:
            ConfigurationError: An amount is negative or not a number.
        """
        amounts = self._validate_amounts(requests, input_tokens, output_tokens)
        return (await self._reserve(key, amounts, 0.0)).granted

    async def acquire(
        self,
        key: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a longer wait is refused at once
        requests: float = 1,
        input_tokens: float = 0,
        output_tokens: float = 0,
    ) -> None:
        """Reserve requests and tokens in the rate limit, waiting until they are available.

        Args:
            key: Key of the limit.
            timeout: Maximum wait in seconds. If the required wait is longer, the call fails at
                once.
            requests: Number of requests.
            input_tokens: Number of prompt tokens.
            output_tokens: Number of response tokens.

        Raises:
            RateLimitExceededError: The required wait exceeds the timeout, or an amount exceeds the
                capacity of the limit.
            ConfigurationError: An amount or the timeout is negative or not a number.
        """
        amounts = self._validate_amounts(requests, input_tokens, output_tokens)
        if timeout is not None and not timeout >= 0:
            raise ConfigurationError(
                f"The timeout {timeout!r} is invalid: it must be a number of seconds, 0 or more.",
                fix="Pass seconds, or None.",
            )
        for bucket, amount in zip(self._buckets, amounts, strict=True):
            if amount > bucket.capacity * (1 + _TOLERANCE):
                raise RateLimitExceededError(
                    f"Cannot reserve {amount:g} {bucket.name} for {key!r}, because the capacity "
                    f"of the rate limit is only {bucket.capacity:g}.",
                    fix="Request less at once, or raise the limit.",
                    severity=ErrorSeverity.CRITICAL,
                    key=key,
                    bucket_name=bucket.name,
                    tokens=amount,
                )
        reservation = await self._reserve(key, amounts, math.inf if timeout is None else timeout)
        if not reservation.granted:
            raise RateLimitExceededError(
                f"The rate limit of {key!r} is exceeded: the next call is possible in"
                f" {reservation.wait_seconds:.3g} s, but the timeout is {timeout:.3g} s.",
                fix="Try again later, or raise the limit.",
                key=key,
                retry_after=reservation.wait_seconds,
                bucket_name=self._buckets[reservation.bucket_index].name,
                tokens=amounts[reservation.bucket_index],
            )
        if reservation.wait_seconds <= 0:
            return
        emit(
            Status(
                message=f"Waiting {reservation.wait_seconds:.3g} s for the rate limit",
                component=key,
            )
        )
        try:
            await self._clock.sleep(reservation.wait_seconds)
        except BaseException:
            await self._return_amounts(key, amounts)
            raise

    async def correct(self, key: str, *, input_tokens: float = 0, output_tokens: float = 0) -> None:
        """Adjust an earlier token reservation to the number of tokens that a model call used.

        Excess tokens are not refused. Instead, later callers wait until the bucket is refilled.

        Args:
            key: Key of the limit.
            input_tokens: Additional prompt tokens; negative if fewer were used.
            output_tokens: Additional response tokens; negative if fewer were used.
        """
        corrections = {
            "requests": 0.0,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
        }
        amounts = [-corrections[bucket.name] for bucket in self._buckets]
        if any(amounts):
            await self._return_amounts(key, amounts)

    def cap_output_tokens(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Limit a call's estimated output tokens to the capacity of the output token bucket."""
        capacities = {bucket.name: math.floor(bucket.capacity) for bucket in self._buckets}
        max_tokens = capacities.get("output_tokens", 0)
        return {**tokens, "output_tokens": min(tokens["output_tokens"], max_tokens)}

    def _validate_amounts(
        self, requests: float, input_tokens: float, output_tokens: float
    ) -> list[float]:
        amounts = {
            "requests": requests,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
        }
        for name, amount in amounts.items():
            check_number(name, amount, error=ConfigurationError)
        return [float(amounts[bucket.name]) for bucket in self._buckets]

    async def _reserve(self, key: str, amounts: Sequence[float], max_wait: float) -> _Reservation:
        def take(value: Any, now: float) -> tuple[Any, float, _Reservation]:
            updated_at, available = self._compute_levels(value, now)
            waits = [
                missing / bucket.rate
                if amount > 0 and (missing := amount - level) > _TOLERANCE * bucket.capacity
                else 0.0
                for bucket, level, amount in zip(self._buckets, available, amounts, strict=True)
            ]
            wait = max(waits)
            if wait > max_wait:
                refusal = _Reservation(wait, False, waits.index(wait))
                return value, self._compute_refill_seconds(available), refusal
            remaining = [level - amount for level, amount in zip(available, amounts, strict=True)]
            return (
                [updated_at, remaining],
                self._compute_refill_seconds(remaining),
                _Reservation(wait, True),
            )

        def undo(reservation: _Reservation) -> ChangeFunction[None]:
            return self._create_return(amounts if reservation.granted else [0.0] * len(amounts))

        return await self._values.achange(self._prefix + key, take, self._clock, undo)

    async def _return_amounts(self, key: str, amounts: Sequence[float]) -> None:
        await self._values.achange(self._prefix + key, self._create_return(amounts), self._clock)

    def _create_return(self, amounts: Sequence[float]) -> ChangeFunction[None]:
        def add(value: Any, now: float) -> tuple[Any, float, None]:
            updated_at, available = self._compute_levels(value, now)
            remaining = [
                min(bucket.capacity, level + amount)
                for bucket, level, amount in zip(self._buckets, available, amounts, strict=True)
            ]
            return [updated_at, remaining], self._compute_refill_seconds(remaining), None

        return add

    def _compute_levels(self, value: Any, now: float) -> tuple[float, list[float]]:
        """Return the update time, and each token bucket's level refilled since the last update."""
        stored_at, levels = value or (now, [bucket.capacity for bucket in self._buckets])
        updated_at = max(now, stored_at)  # a clock that is set back must not refill twice
        return updated_at, [
            min(bucket.capacity, level + (updated_at - stored_at) * bucket.rate)
            for bucket, level in zip(self._buckets, levels, strict=True)
        ]

    def _compute_refill_seconds(self, available: Sequence[float]) -> float:
        """Return the number of seconds until all token buckets are full again.

        After this time, the stored levels may expire.
        """
        return max(
            (bucket.capacity - level) / bucket.rate
            for bucket, level in zip(self._buckets, available, strict=True)
        )


RateLimitScope = Literal["capability", "model", "user", "tenant"]


class RateLimitBehavior:
    """Behavior that limits how often a capability or a model is called.

    Each attempt acquires the limit before it takes a concurrency slot.

    Args:
        calls_per_second: Maximum calls per second; may be below 1.
        burst: Maximum number of calls at once. Defaults to ``calls_per_second``, but at least 1.
        wait_on_limit: True to wait, False to fail at once without a retry.
        limiter: Rate limiter to use instead of these numbers. Tokens of a model call are estimated
            before the call and corrected by the reported usage.
        per: Scope of the count: one or more of ``capability`` (for a model call, its role),
            ``model`` (limits model calls only), ``user``, and ``tenant``.
        clock: Source of time. Defaults to the graph's clock.
        store: Database for the counts; see :class:`RateLimiter`.

    Raises:
        ConfigurationError: A number is invalid. The error is a ``ValueError``.

    >>> from capgraph import build_graph, capability_node
    >>> @capability_node(behaviors=[RateLimitBehavior(calls_per_second=0.5)])
    ... async def read() -> dict:
    ...     '''Read how full the tank is.'''
    ...     return {}
    >>> graph = build_graph([read])
    """

    stage: Literal["acquire"] = "acquire"
    order = 20

    @validate_arguments
    def __init__(
        self,
        calls_per_second: float = 1.0,
        burst: float | None = None,
        wait_on_limit: bool = True,
        *,
        limiter: RateLimiter | None = None,
        per: RateLimitScope | Sequence[RateLimitScope] = "capability",
        clock: Clock | Callable[[], float] | None = None,
        store: str | SqlTables | None = None,
    ) -> None:
        check_number("calls_per_second", calls_per_second, above=0, error=ConfigurationError)
        self._limiter = limiter or RateLimiter(
            rpm=calls_per_second * _MINUTE,
            burst=max(1.0, calls_per_second) if burst is None else burst,
            clock=clock,
            store=store,
        )
        self._wait_on_limit = wait_on_limit
        self.per: tuple[str, ...] = (per,) if isinstance(per, str) else tuple(per)
        known = RateLimitScope.__args__  # type: ignore[attr-defined]
        # A count per model applies to model calls only.
        self.applies_to: tuple[str, ...] = (
            ("model",) if "model" in self.per else ("step", "effect", "model")
        )
        if unknown := sorted(set(self.per) - set(known)):
            raise ConfigurationError(
                f"The scope {', '.join(unknown)} of the rate limit is unknown.",
                fix=f"Use {', '.join(known)}.",
            )

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Wait until the rate limit permits a step attempt or model call, then run it.

        Raises:
            RateLimitExceededError: The wait would exceed the remaining time.
        """
        key = self._key(attempt)
        tokens: Mapping[str, int] = {}
        if self._limiter.counts_tokens and (estimate := self._get_estimate(attempt)):
            # At least one token, so that the call waits for a bucket that an answer overdrew.
            estimate = {name: max(1, count) for name, count in estimate.items()}
            tokens = self._limiter.cap_output_tokens(estimate)
        try:
            await self._limiter.acquire(key, timeout=self._get_max_wait(attempt), **tokens)
        except RateLimitExceededError as exc:
            exc.severity = ErrorSeverity.CRITICAL  # acquire() has already waited as long as allowed
            raise
        if not tokens:
            return await call_next(attempt)
        used: Mapping[str, int] = {"output_tokens": 0}
        try:
            result = await call_next(attempt)
            used = self._get_usage(result) or tokens
        finally:
            corrections = {name: count - tokens[name] for name, count in used.items()}
            with log_and_suppress(f"The token usage of a call under {key!r}"):
                await self._limiter.correct(key, **corrections)
        return result

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Apply the rate limit to a model call in the same way as :meth:`wrap_step`."""
        return await self.wrap_step(attempt, call_next)

    def _get_estimate(self, attempt: Attempt) -> dict[str, int] | None:
        """Return the token estimate to reserve for a model call, or ``None`` for a step."""
        return _estimate_tokens(attempt.inputs) if attempt.kind == "model" else None

    def _get_usage(self, result: Any) -> dict[str, int] | None:
        """Return the token usage of a finished model call, or ``None`` if it was not reported."""
        return _read_usage(result)

    def _get_max_wait(self, attempt: Attempt) -> float | None:
        if not self._wait_on_limit:
            return 0.0
        job = current_execution() if attempt.kind == "step" else None
        remaining = job.context.control.seconds_left() if job is not None else None
        return None if remaining is None else max(0.0, remaining)

    def _key(self, attempt: Attempt) -> str:
        parts = []
        for name in self.per:
            if name == "capability":
                model = attempt.kind == "model"
                parts.append(f"model {attempt.capability}" if model else attempt.capability)
            elif name == "model":
                from capgraph.models.roles import (
                    model_name,
                )  # imported lazily: it loads LangChain's model classes

                parts.append(model_name(attempt.inputs["model"]))
            else:
                payer = billing_subject()
                user = normalize_user_id(payer.user_id or "")
                parts.append(user if name == "user" else payer.tenant or "")
        return "/".join(str(part).replace("/", "//") for part in parts)


def _estimate_tokens(inputs: Mapping[str, Any]) -> dict[str, int]:
    """Estimate the input and output tokens of a model call before the call is made.

    The model's ``max_tokens`` setting is the output estimate; without that setting, the
    estimate is 0.
    """
    from langchain_core.messages.utils import count_tokens_approximately

    cap = getattr(inputs["model"], "max_tokens", None)
    return {
        "input_tokens": count_tokens_approximately(inputs["messages"]),
        "output_tokens": cap if isinstance(cap, int) else 0,
    }


def _read_usage(result: Any) -> dict[str, int] | None:
    """Return the input and output token counts that a model response reports, or ``None``."""
    message = result.get("raw") if isinstance(result, Mapping) else result
    usage = getattr(message, "usage_metadata", None)
    if not usage:
        return None
    return {name: int(usage.get(name) or 0) for name in ("input_tokens", "output_tokens")}
