"""Rate limits: so many requests and tokens a minute, for each of whom they are counted for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from capgraph.base.errors import ConfigurationError, ErrorSeverity, LimitError
from capgraph.base.ports import Attempt, CallNext
from capgraph.helpers.clock import Clock, as_clock, current_clock
from capgraph.helpers.number_validation import check_number
from capgraph.pipeline.run_config import billing_subject
from capgraph.pipeline.step_execution import current_execution
from capgraph.stores.atomic_values import ChangeFunction, log_and_suppress
from capgraph.stores.database import SqlTables
from capgraph.stores.persistence import open_values
from capgraph.telemetry import Status, emit

_MINUTE = 60.0
_TOLERANCE = 1e-9  # what adding up parts of seconds may lose, of a whole capacity


class RateLimitExceededError(LimitError):
    """There is no room under a rate limit, now or in the time that one would wait.

    Attributes:
        key: Whose limit it is.
        retry_after: In how many seconds there is room; ``None`` when there never will be.
    """

    code = "CG-RATE-LIMIT"
    severity: ErrorSeverity = ErrorSeverity.RETRIABLE
    key: str = ""
    retry_after: float | None = None


class _Bucket(NamedTuple):
    """What is limited, how much of it there may be at once, and what comes back in a second."""

    name: str
    capacity: float
    rate: float


class _Reservation(NamedTuple):
    """How long to wait, and whether the place is taken."""

    wait_seconds: float
    granted: bool


class RateLimiter:
    """Token buckets for requests, input tokens and output tokens, one of each for every key.

    A caller who has to wait takes its place at once and waits for exactly as long as that takes:
    nothing polls, nothing is held, nobody is overtaken. A place that is given up is free again.

    Args:
        rpm: Requests a minute; may be below one.
        input_tpm: Tokens of prompts a minute.
        output_tpm: Tokens of answers a minute.
        burst: How many requests may come at once; those of a minute when not given.
        clock: Source of time: a clock, or a function that returns seconds. When not given, the
            graph's own around a step or a model call, else the machine's.
        store: Where the counts lie, for processes that share them: ``sqlite:///file.db``,
            ``postgresql://…``, ``redis://…``, or ``saver`` for the database of the graph's saver.

    Raises:
        ConfigurationError: A number is nonsense, or nothing is limited; it is a ``ValueError``.

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
        named = {"requests": rpm, "input_tokens": input_tpm, "output_tokens": output_tpm}
        given = {name: number for name, number in named.items() if number is not None}
        for name, number in given.items():
            check_number(name, number, above=0, error=ConfigurationError)
        self._buckets = [
            _Bucket(name, max(1.0, float(number)), number / _MINUTE)
            for name, number in given.items()
        ]
        if not self._buckets:
            raise ConfigurationError(
                "The rate limiter limits nothing.", fix="Give rpm, input_tpm or output_tpm."
            )
        if burst is not None and rpm is not None:
            check_number("burst", burst, minimum=1, error=ConfigurationError)
            self._buckets[0] = self._buckets[0]._replace(capacity=float(burst))
        # Limiters that share a database and not their numbers count apart.
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
        """Take a place if there is one now; there never is one for more than fits at once.

        Raises:
            ConfigurationError: An amount is negative or no number.
        """
        amounts = self._validate_amounts(requests, input_tokens, output_tokens)
        return (await self._reserve(key, amounts, 0.0)).granted

    async def acquire(
        self,
        key: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - what does not fit is refused at once
        requests: float = 1,
        input_tokens: float = 0,
        output_tokens: float = 0,
    ) -> None:
        """Take a place and wait until it is there.

        Args:
            key: Whose limit it is.
            timeout: For how many seconds one would wait; a longer wait is refused at once.
            requests: How many requests.
            input_tokens: How many tokens of prompts.
            output_tokens: How many tokens of answers.

        Raises:
            RateLimitExceededError: The wait is too long, or what is asked for never fits.
            ConfigurationError: An amount or the time-out is negative or no number.
        """
        amounts = self._validate_amounts(requests, input_tokens, output_tokens)
        if timeout is not None and not timeout >= 0:
            raise ConfigurationError(f"timeout is {timeout!r}.", fix="Give seconds, or None.")
        for bucket, amount in zip(self._buckets, amounts, strict=True):
            if amount > bucket.capacity * (1 + _TOLERANCE):
                raise RateLimitExceededError(
                    f"{amount:g} {bucket.name} are asked for under the rate limit of {key!r},"
                    f" which never has room for more than {bucket.capacity:g}.",
                    fix="Ask for less at once, or raise the limit.",
                    severity=ErrorSeverity.CRITICAL,
                    key=key,
                )
        taken = await self._reserve(key, amounts, math.inf if timeout is None else timeout)
        if not taken.granted:
            raise RateLimitExceededError(
                f"The rate limit of {key!r} has room in {taken.wait_seconds:.3g} s, and"
                f" {timeout:.3g} s would be waited.",
                fix="Try again later, or raise the limit.",
                key=key,
                retry_after=taken.wait_seconds,
            )
        if taken.wait_seconds <= 0:
            return
        emit(
            Status(message=f"Waiting {taken.wait_seconds:.3g} s for the rate limit", component=key)
        )
        try:
            await self._clock.sleep(taken.wait_seconds)
        except BaseException:
            await self._return_amounts(key, amounts)
            raise

    async def correct(self, key: str, *, input_tokens: float = 0, output_tokens: float = 0) -> None:
        """Count what was used beyond what was taken, or give back what was not.

        What is over is not refused any more; the next ones wait until it is made up for.

        Args:
            key: Whose limit it is.
            input_tokens: How many more; negative for fewer.
            output_tokens: How many more; negative for fewer.
        """
        more = {"requests": 0.0, "input_tokens": input_tokens, "output_tokens": output_tokens}
        amounts = [-more[bucket.name] for bucket in self._buckets]
        if any(amounts):
            await self._return_amounts(key, amounts)

    def cap_output_tokens(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Cut the room that an answer might take to what there can be."""
        caps = {bucket.name: math.floor(bucket.capacity) for bucket in self._buckets}
        most = caps.get("output_tokens", 0)
        return {**tokens, "output_tokens": min(tokens["output_tokens"], most)}

    def _validate_amounts(
        self, requests: float, input_tokens: float, output_tokens: float
    ) -> list[float]:
        given = {
            "requests": requests,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
        }
        for name, amount in given.items():
            check_number(name, amount, error=ConfigurationError)
        return [float(given[bucket.name]) for bucket in self._buckets]

    async def _reserve(self, key: str, amounts: Sequence[float], max_wait: float) -> _Reservation:
        def take(value: Any, now: float) -> tuple[Any, float, _Reservation]:
            at, left = self._available(value, now)
            wait = 0.0
            for bucket, there, amount in zip(self._buckets, left, amounts, strict=True):
                missing = amount - there
                if amount > 0 and missing > _TOLERANCE * bucket.capacity:
                    wait = max(wait, missing / bucket.rate)
            if wait > max_wait:
                return value, self._seconds_until_full(left), _Reservation(wait, False)
            rest = [there - amount for there, amount in zip(left, amounts, strict=True)]
            return [at, rest], self._seconds_until_full(rest), _Reservation(wait, True)

        def undo(taken: _Reservation) -> ChangeFunction[None]:
            return self._return_change(amounts if taken.granted else [0.0] * len(amounts))

        return await self._values.achange(self._prefix + key, take, self._clock, undo)

    async def _return_amounts(self, key: str, amounts: Sequence[float]) -> None:
        await self._values.achange(self._prefix + key, self._return_change(amounts), self._clock)

    def _return_change(self, amounts: Sequence[float]) -> ChangeFunction[None]:
        def add(value: Any, now: float) -> tuple[Any, float, None]:
            at, left = self._available(value, now)
            rest = [
                min(bucket.capacity, there + amount)
                for bucket, there, amount in zip(self._buckets, left, amounts, strict=True)
            ]
            return [at, rest], self._seconds_until_full(rest), None

        return add

    def _available(self, value: Any, now: float) -> tuple[float, list[float]]:
        """Return what there is of each, with what came back since it was written down."""
        since, left = value or (now, [bucket.capacity for bucket in self._buckets])
        at = max(now, since)  # a clock that is set back gives nothing twice
        return at, [
            min(bucket.capacity, there + (at - since) * bucket.rate)
            for bucket, there in zip(self._buckets, left, strict=True)
        ]

    def _seconds_until_full(self, available: Sequence[float]) -> float:
        """Return in how many seconds everything is there again, so that nothing need be kept."""
        return max(
            (bucket.capacity - there) / bucket.rate
            for bucket, there in zip(self._buckets, available, strict=True)
        )


RateLimitScope = Literal["capability", "model", "user", "tenant"]


class RateLimitBehavior:
    """Bounds how often a capability or a model is called.

    Each try asks again, before it takes a slot and whatever the order of the list.

    Args:
        calls_per_second: How many calls a second; may be below one.
        burst: How many may come at once; those of a second, and at least one, when not given.
        wait_on_limit: Whether a call waits; else it fails at once, for good.
        limiter: A limiter in place of these numbers. The tokens of its model calls are estimated
            before a call and corrected by what the model says it used.
        per: For whom calls are counted: one or more of ``capability`` (of a model call, its role),
            ``model`` (then of model calls alone), ``user`` and ``tenant``.
        clock: Source of time; the graph's own when not given.
        store: Where the counts lie, for processes that share them; see :class:`RateLimiter`.

    Raises:
        ConfigurationError: A number is nonsense; it is a ``ValueError``.

    >>> from capgraph import build_graph, capability_node
    >>> @capability_node(behaviors=[RateLimitBehavior(calls_per_second=0.5)])
    ... async def read() -> dict:
    ...     '''Read how full the tank is.'''
    ...     return {}
    >>> graph = build_graph([read])
    """

    stage: Literal["acquire"] = "acquire"
    order = 20

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
        # What is counted for a model is the model's calls alone.
        self.applies_to: tuple[str, ...] = (
            ("model",) if "model" in self.per else ("step", "effect", "model")
        )
        if unknown := sorted(set(self.per) - set(known)):
            raise ConfigurationError(
                f"Calls cannot be counted per {', '.join(unknown)}.",
                fix=f"Use {', '.join(known)}.",
            )

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Wait for a place, or refuse the try.

        Raises:
            RateLimitExceededError: There is none in the time that is left.
        """
        key = self._key(attempt)
        tokens: Mapping[str, int] = {}
        if attempt.kind == "model" and self._limiter.counts_tokens:
            tokens = self._limiter.cap_output_tokens(_estimate_tokens(attempt.inputs))
        try:
            await self._limiter.acquire(key, timeout=self._max_wait(attempt), **tokens)
        except RateLimitExceededError as exc:
            exc.severity = ErrorSeverity.CRITICAL  # who would wait for it has done so above
            raise
        if not tokens:
            return await call_next(attempt)
        used: Mapping[str, int] = {"output_tokens": 0}
        try:
            result = await call_next(attempt)
            used = _reported_usage(result) or tokens
        finally:
            more = {name: count - tokens[name] for name, count in used.items()}
            with log_and_suppress(f"What a call under {key!r} used"):
                await self._limiter.correct(key, **more)
        return result

    async def wrap_model_call(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Apply the limit to a model call; see :meth:`wrap_step`."""
        return await self.wrap_step(attempt, call_next)

    def _max_wait(self, attempt: Attempt) -> float | None:
        if not self._wait_on_limit:
            return 0.0
        job = current_execution() if attempt.kind == "step" else None
        left = job.context.control.seconds_left() if job is not None else None
        return None if left is None else max(0.0, left)

    def _key(self, attempt: Attempt) -> str:
        found = []
        for name in self.per:
            if name == "capability":
                model = attempt.kind == "model"
                found.append(f"model {attempt.capability}" if model else attempt.capability)
            elif name == "model":
                from capgraph.models.roles import model_name  # not before there is a model

                found.append(model_name(attempt.inputs["model"]))
            else:
                payer = billing_subject()
                found.append((payer.user_id if name == "user" else payer.tenant) or "")
        return "/".join(str(part).replace("/", "//") for part in found)


def _estimate_tokens(inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return about how many tokens a model call takes, as far as one can know before."""
    from langchain_core.messages.utils import count_tokens_approximately

    cap = getattr(inputs["model"], "max_tokens", None)
    return {
        "input_tokens": count_tokens_approximately(inputs["messages"]),
        "output_tokens": cap if isinstance(cap, int) else 0,
    }


def _reported_usage(result: Any) -> dict[str, int] | None:
    """Return what a model says that its answer took."""
    message = result.get("raw") if isinstance(result, Mapping) else result
    usage = getattr(message, "usage_metadata", None)
    if not usage:
        return None
    return {name: int(usage.get(name) or 0) for name in ("input_tokens", "output_tokens")}
