"""Recorded runs: comparison, replay with the current code, and read-only links."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from capgraph.base.errors import PersistenceError, ValidationError
from capgraph.base.ports import Caller
from capgraph.configs.logger import SecretMasker, mask_data, use_masker
from capgraph.planning.catalog import TERMINAL_STEPS
from capgraph.serve.problems import NotFoundError
from capgraph.serve.threads import Threads, to_json_safe

if TYPE_CHECKING:
    from capgraph.configs.settings import ServeSettings
    from capgraph.evaluation import Recording
    from capgraph.stores.persistence import Persistence

_DAY_SECONDS = 86_400
_DEFAULT_DAYS = 7.0
_MAX_LINKS = 20
"""Maximum number of active links of a thread."""
_MAX_RUNS = 20
"""Maximum number of listed runs of a thread."""
_TOKEN = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{16})\.([\w-]{43})", re.ASCII)
_HIDDEN_NAME = "[user]"


class RecordedRuns:
    """Access to the recorded runs of the users' threads, to compare, replay, and share them.

    Args:
        graph: Graph made by ``build_graph``, with a checkpointer.
        threads: The users' threads.
        settings: Settings of the server.
        current: Function that returns a user with the current role, or ``None`` if the user may no
            longer log in. By default, the role of the last request applies.
    """

    def __init__(
        self,
        graph: Any,
        threads: Threads,
        settings: ServeSettings,
        current: Callable[[Caller], Awaitable[Caller | None]] | None = None,
    ) -> None:
        self._graph, self._threads, self._settings = graph, threads, settings
        self._current = current
        self._services = graph.services
        self._persistence: Persistence = graph.persistence
        self._replay_slot = asyncio.Semaphore(1)

    async def list_runs(self, caller: Caller, thread_id: str) -> list[dict[str, Any]]:
        """Return the most recently recorded runs of a thread, latest first.

        Raises:
            NotFoundError: The thread does not exist.
        """
        from capgraph.evaluation.recording import iter_recordings

        storage_id = await self._threads.resolve(caller, thread_id)
        saver = self._graph.checkpointer
        runs = []
        async for one in iter_recordings(saver, storage_id):
            if one.turn:
                fields = {"turn": one.turn, "at": one.at, "request": one.request}
                runs.append({**fields, "status": one.end.status})
            if len(runs) == _MAX_RUNS:
                break
        return runs

    async def compare(
        self, caller: Caller, first: tuple[str, int | None], second: tuple[str, int | None]
    ) -> dict[str, Any]:
        """Return two recorded runs and the differences between them.

        Args:
            caller: Owner of both threads.
            first: Thread ID and run number of the first run. ``None`` selects the last run.
            second: Thread ID and run number of the second run.

        Raises:
            NotFoundError: A thread or a run does not exist.
        """
        from capgraph.evaluation.replay_turn import ReplayResult, compare_outcomes

        recordings = [await self._read(caller, *one) for one in (first, second)]
        ends = recordings[0].end, recordings[1].end
        differences = tuple(compare_outcomes(*ends, compare_costs=True))
        return self._hide_internals(ReplayResult(*ends, differences, (), ()).as_data(), *recordings)

    async def replay(self, caller: Caller, thread_id: str, turn: int | None) -> dict[str, Any]:
        """Replay a recorded run with the current code and return the differences.

        Recorded steps and model calls are not executed again, and nothing is stored. The role of
        the caller applies, not the role that started the recorded run.

        Raises:
            NotFoundError: The thread or the run does not exist.
        """
        from capgraph.evaluation.replay_turn import replay

        recording = await self._read(caller, thread_id, turn)
        fields = {n: getattr(caller, n) for n in ("user_id", "role", "tenant")}
        person = {name: value for name, value in fields.items() if value is not None}
        permissions = self._services.permissions
        async with self._replay_slot:
            result = await replay(
                recording.model_copy(update={"caller": person}),
                self._services.registry,
                settings=self._services.settings,
                permissions=None if permissions is None else permissions.permissions,
            )
        return self._hide_internals(result.as_data(), recording)

    async def create_link(
        self, caller: Caller, thread_id: str, turn: int | None, days: float | None
    ) -> dict[str, Any]:
        """Create a read-only link to a run and return it with its secret token.

        Raises:
            NotFoundError: The thread or the run does not exist.
            ValidationError: Links are disabled, the lifetime is invalid, or the thread has too many
                links.
        """
        max_days = self._settings.max_link_days
        days = min(_DEFAULT_DAYS, max_days) if days is None else days
        if not max_days:
            raise ValidationError(
                "Links to runs are disabled.", fix="Set serve.max_link_days to enable them."
            )
        if not 0 < days <= max_days:
            raise ValidationError(
                f"The lifetime of a link is {days:g} days: expected more than 0 and at most"
                f" {max_days:g}.",
                fix=f"Send days={min(_DEFAULT_DAYS, max_days):g}.",
            )
        recording = await self._read(caller, thread_id, turn)
        prefix = _link_prefix(recording.thread)
        if len(await self._read_links(prefix)) >= _MAX_LINKS:
            raise ValidationError(
                f"The thread has {_MAX_LINKS} links, which is the limit.", fix="Revoke one."
            )
        await self._persistence.roles.record(caller)
        link_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        link = {
            "secret_hash": _hash(secret),
            "thread_id": thread_id,
            "user": [caller.user_id, caller.role, caller.tenant],
            "turn": recording.turn,
            "at": recording.at,
            "expires_at": self._services.clock.now() + days * _DAY_SECONDS,
        }
        await self._store(f"{prefix}{link_id}", link, days * _DAY_SECONDS)
        token = f"{_thread_digest(recording.thread)}.{link_id}.{secret}"
        return {**_link_fields(link_id, link), "token": token}

    async def list_links(self, caller: Caller, thread_id: str) -> list[dict[str, Any]]:
        """Return the active links to a thread's runs, without their secret tokens.

        Raises:
            NotFoundError: The thread does not exist.
        """
        prefix = _link_prefix(await self._threads.resolve(caller, thread_id))
        links = await self._read_links(prefix)
        return [_link_fields(name.removeprefix(prefix), link) for name, link in links.items()]

    async def revoke_link(self, caller: Caller, thread_id: str, link_id: str) -> None:
        """Revoke a link to a run, so that its token no longer opens the run.

        Raises:
            NotFoundError: The thread or the link does not exist.
        """
        prefix = _link_prefix(await self._threads.resolve(caller, thread_id))
        if f"{prefix}{link_id}" not in await self._read_links(prefix):
            raise NotFoundError("The link does not exist.", fix="List the thread's links.")
        await self._store(f"{prefix}{link_id}", None, 0)

    async def open_link(self, token: str) -> dict[str, Any]:
        """Return the run that a shared link opens, without identities, secrets, or file paths.

        Raises:
            NotFoundError: The link is forged, expired, or revoked, its run was deleted, or its
                maker has another role or may no longer log in.
        """
        missing = NotFoundError(
            "The link is invalid, has expired, or was revoked.", fix="Request a new link."
        )
        parts = _TOKEN.fullmatch(token)
        if parts is None or not self._settings.max_link_days:
            raise missing
        place, link_id, secret = parts.groups()
        name = f"run_link/{place}/{link_id}"
        link = (await self._read_links(name)).get(name)
        if link is None or not secrets.compare_digest(link["secret_hash"], _hash(secret)):
            raise missing
        user_id, role, tenant = link["user"]
        maker = Caller(user_id, role, tenant, authenticated=True)
        if not await self._has_unchanged_role(maker):
            raise missing
        try:
            recording = await self._read(maker, link["thread_id"], link["turn"])
        except NotFoundError:
            raise missing from None
        # A thread that was deleted and created again under the same ID is another one.
        if recording.at != link["at"] or _thread_digest(recording.thread) != place:
            raise missing
        return self._shared_fields(recording, maker)

    async def _has_unchanged_role(self, maker: Caller) -> bool:
        """Return True if a user may still log in and has the same role as before."""
        current = maker if self._current is None else await self._current(maker)
        return maker == current == await self._persistence.roles.find(maker)

    def _shared_fields(self, recording: Recording, maker: Caller) -> dict[str, Any]:
        """Return the fields of a recorded run that a shared link shows."""
        end = recording.end
        steps = [
            {
                "context_key": step["context_key"],
                "capability": step["capability"],
                "task_objective": step.get("task_objective") or "",
                **end.results.get(step["context_key"], {}),
                "failed_elements": [
                    result.get("error") or ""
                    for key, result in end.results.items()
                    if key.startswith(f"{step['context_key']}[") and not result.get("success", True)
                ],
            }
            for step in end.plan
            if step["capability"] not in TERMINAL_STEPS
        ]
        shown = self._hide_internals(
            {
                "agent": self._services.settings.name,
                "request": recording.request,
                "at": recording.at,
                "status": end.status,
                "reason": end.reason,
                "steps": steps,
                "answer": end.answer,
                "cost": end.cost.model_dump(),
            },
            recording,
        )
        hidden: dict[str, Any] = _hide_names(shown, _identities(recording, maker))
        return hidden

    async def _read(self, caller: Caller, thread_id: str, turn: int | None) -> Recording:
        from capgraph.evaluation.recording import record

        storage_id = await self._threads.resolve(caller, thread_id)
        try:
            return await record(self._graph.checkpointer, storage_id, turn)
        except PersistenceError as exc:
            raise NotFoundError(
                "The recorded history of the run is incomplete.",
                fix="List the thread's recorded runs.",
            ) from exc

    def _hide_internals(self, data: Any, *recordings: Recording) -> dict[str, Any]:
        """Return data for clients, with secrets masked and server paths reduced to file names."""
        contexts: list[tuple[str, str, Any]] = []
        for one in recordings:
            for state in (one.before, one.given):
                entries = state.get("capability_context_data") or {}
                contexts += [
                    (kind, key, e) for kind, named in entries.items() for key, e in named.items()
                ]
            for key, result in one.end.results.items():
                contexts += [(kind, key, e) for kind, e in (result.get("gave") or {}).items()]
        with use_masker(SecretMasker.of(self._services.settings)):
            plain: dict[str, Any] = self._threads.hide_paths(
                contexts, to_json_safe(mask_data(data))
            )
        return plain

    async def _store(self, name: str, value: Any, seconds: float) -> None:
        clock = self._services.clock
        await self._persistence.values.achange(name, lambda *_: (value, seconds, None), clock)

    async def _read_links(self, prefix: str) -> dict[str, dict[str, Any]]:
        stored, _ = await self._persistence.values.aread(prefix, self._services.clock)
        now = self._services.clock.now()
        return {name: link for name, link in stored.items() if link["expires_at"] > now}


def _link_fields(link_id: str, link: Mapping[str, Any]) -> dict[str, Any]:
    return {"link_id": link_id, **{name: link[name] for name in ("turn", "expires_at")}}


def _link_prefix(storage_id: str) -> str:
    return f"run_link/{_thread_digest(storage_id)}/"


def _thread_digest(storage_id: str) -> str:
    return _hash(storage_id)[:32]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _identities(recording: Recording, maker: Caller) -> re.Pattern[str] | None:
    """Return a regular expression that matches the users and tenants involved in a run."""
    answers = chain.from_iterable(visit.answers for visit in recording.visits)
    people = [recording.caller, *(answer.by for answer in answers)]
    names = {one.get(field) for one in people for field in ("user_id", "tenant")}
    names |= {maker.user_id, maker.tenant}
    known = sorted((name for name in names if name), key=len, reverse=True)
    if not known:
        return None
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, known))})(?!\w)", re.IGNORECASE)


def _hide_names(value: Any, names: re.Pattern[str] | None) -> Any:
    if names is None:
        return value
    if isinstance(value, str):
        return names.sub(_HIDDEN_NAME, value)
    if isinstance(value, dict):
        return {_hide_names(key, names): _hide_names(one, names) for key, one in value.items()}
    return [_hide_names(one, names) for one in value] if isinstance(value, list) else value
