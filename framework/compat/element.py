"""Things with an id, their order and their collection: ``Element``, ``Progression``, ``Pile``."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, TypeVar, overload
from uuid import UUID, uuid4

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from capgraph.base.errors import CapgraphError, ValidationError
from capgraph.helpers.files import to_csv, write_atomic

ElementT = TypeVar("ElementT", bound="Element")
ElementRef = Any
"""An element, its id, or the id as text."""
_CLASS = "class"
_MISSING: Any = object()


class ItemNotFoundError(CapgraphError, KeyError):
    """An item that is not in a collection."""

    code = "CG-ITEM"

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError writes the repr


class ItemExistsError(CapgraphError, ValueError):
    """An item that is in a collection already."""

    code = "CG-ITEM"


class Element(BaseModel):
    """Something with an id that never changes.

    Attributes:
        id: Made when it is not given; a text is read.
        created_at: Seconds since the epoch; an ISO text or a moment is read, without a zone as UTC.
        metadata: Whatever goes along.

    >>> one = Element(metadata={"from": "lab"})
    >>> Element.from_dict(one.to_dict()) == one
    True
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", validate_assignment=True)

    id: UUID = Field(default_factory=uuid4, frozen=True)
    created_at: float = Field(default_factory=lambda: datetime.now(UTC).timestamp(), frozen=True)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("created_at", mode="before")
    @classmethod
    def _parse_created_at(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        return value

    @field_serializer("id")
    def _serialize_id(self, value: UUID) -> str:
        return str(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Element) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __bool__(self) -> bool:
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that names the class."""
        data = self.model_dump(mode="json")
        return {**data, "metadata": {**data["metadata"], _CLASS: type(self).__qualname__}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Element:
        """Make an element of plain data, of the class that it names.

        Nothing is imported by name: only this class and those derived from it are known.

        Raises:
            ValidationError: The class is none of these.
        """
        metadata = dict(data.get("metadata") or {})
        wanted = metadata.pop(_CLASS, cls.__qualname__)
        known = {found.__qualname__: found for found in _iter_subclasses(cls)}
        if wanted not in known:
            raise ValidationError(
                f"{wanted!r} is no class that {cls.__name__} knows: {', '.join(sorted(known))}.",
                fix="Import the module that defines it first.",
            )
        return known[wanted].model_validate({**data, "metadata": metadata})

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Element:
        """Make an element of what :meth:`to_json` wrote."""
        return cls.from_dict(json.loads(text))


def _iter_subclasses(cls: type[Element]) -> Iterator[type[Element]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _iter_subclasses(child)


def to_id(ref: ElementRef) -> UUID:
    """Return the id that an element, an id or a text stands for.

    Raises:
        ItemNotFoundError: It is none of these.
    """
    if isinstance(ref, Element):
        return ref.id
    try:
        return ref if isinstance(ref, UUID) else UUID(ref)
    except (ValueError, AttributeError, TypeError):
        raise ItemNotFoundError(
            f"{ref!r} is no element and no id.", fix="Give an element, a UUID or its text."
        ) from None


def _to_ids(refs: Any) -> list[UUID]:
    many = isinstance(refs, Iterable) and not isinstance(refs, (str, Element))
    return [to_id(ref) for ref in refs] if many else [to_id(refs)]


class Progression:
    """An order of ids; an id may stand in it more than once.

    Args:
        order: Elements or ids.
        name: What it is called.

    >>> steps = Progression([first := uuid4(), second := uuid4()])
    >>> steps.include(first), list(steps[1:]) == [second]
    (False, True)
    """

    def __init__(self, order: Any = (), name: str | None = None) -> None:
        self.order: list[UUID] = _to_ids(order)
        self.name = name

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[UUID]:
        return iter(tuple(self.order))

    def __contains__(self, ref: ElementRef) -> bool:
        try:
            return all(one in self.order for one in _to_ids(ref))
        except ItemNotFoundError:
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Progression) and other.order == self.order

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # it changes

    @overload
    def __getitem__(self, position: int) -> UUID: ...
    @overload
    def __getitem__(self, place: slice) -> Progression: ...
    def __getitem__(self, place: int | slice) -> UUID | Progression:
        if isinstance(place, slice):
            return Progression(self.order[place], self.name)
        with _ItemLookup(place):
            return self.order[place]

    def __add__(self, other: Any) -> Progression:
        return Progression([*self.order, *_to_ids(other)], self.name)

    def __sub__(self, other: Any) -> Progression:
        gone = set(_to_ids(other))
        return Progression([one for one in self.order if one not in gone], self.name)

    def include(self, refs: Any) -> bool:
        """Append what is not in it yet; tell whether anything was."""
        new = [one for one in dict.fromkeys(_to_ids(refs)) if one not in self.order]
        self.order += new
        return bool(new)

    def exclude(self, refs: Any) -> bool:
        """Take out whatever is in it; tell whether anything was."""
        before, gone = len(self.order), set(_to_ids(refs))
        self.order = [one for one in self.order if one not in gone]
        return len(self.order) != before

    def append(self, ref: ElementRef) -> None:
        """Put an id at the end, once more if it is in it already."""
        self.order.append(to_id(ref))

    def insert(self, position: int, ref: ElementRef) -> None:
        """Put an id at a place."""
        self.order.insert(position, to_id(ref))

    def remove(self, ref: ElementRef) -> None:
        """Take an id out where it first stands.

        Raises:
            ItemNotFoundError: It is not in it.
        """
        with _ItemLookup(ref):
            self.order.remove(to_id(ref))

    def pop(self, position: int = -1) -> UUID:
        """Take out and return the id at a place, the last one by default.

        Raises:
            ItemNotFoundError: Nothing stands there.
        """
        with _ItemLookup(position):
            return self.order.pop(position)

    def popleft(self) -> UUID:
        """Take out and return the first id.

        Raises:
            ItemNotFoundError: It is empty.
        """
        return self.pop(0)

    def move(self, origin: int, target: int) -> None:
        """Take the id at one place and put it at another."""
        self.insert(target, self.pop(origin))

    def swap(self, first: int, second: int) -> None:
        """Exchange the ids at two places."""
        with _ItemLookup((first, second)):
            self.order[first], self.order[second] = self.order[second], self.order[first]

    def reverse(self) -> None:
        """Turn the order around."""
        self.order.reverse()

    def index(self, ref: ElementRef) -> int:
        """Return where an id first stands.

        Raises:
            ItemNotFoundError: It is not in it.
        """
        with _ItemLookup(ref):
            return self.order.index(to_id(ref))

    def count(self, ref: ElementRef) -> int:
        """Return how often an id stands in it."""
        return self.order.count(to_id(ref))


class _ItemLookup:
    """Turns the lists' own errors into one that names what was looked for."""

    def __init__(self, ref: Any) -> None:
        self._what = ref

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, exc: BaseException | None, _: Any) -> None:
        if isinstance(exc, (IndexError, ValueError)) and not isinstance(exc, CapgraphError):
            raise ItemNotFoundError(
                f"{self._what!r} is not in it.", fix="Look with 'in' or len() first."
            ) from None


def _with_async_lock(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return a method that is done after whoever holds the pile with ``async with``."""

    @functools.wraps(method)
    async def waited(self: Any, *args: Any, **kwargs: Any) -> Any:
        async with self:
            return method(self, *args, **kwargs)

    return waited


class Pile(Generic[ElementT]):
    """An ordered collection of elements by id, safe to use from several threads.

    Args:
        collections: Elements, or one.
        item_type: What may be in it: a class or several; ``None`` for any element.
        order: The order of the ids; as given when it is left out.
        strict_type: Whether classes derived from ``item_type`` are refused.

    Raises:
        ValidationError: An element is of another type, or ``order`` names other elements.

    >>> pile = Pile([one := Element(), other := Element()])
    >>> pile[0] == one, pile[other.id] == other, other in pile
    (True, True, True)
    """

    def __init__(
        self,
        collections: Any = (),
        item_type: Any = None,
        order: Any = None,
        strict_type: bool = False,
    ) -> None:
        types = item_type if isinstance(item_type, (list, tuple, set)) else [item_type]
        self.item_type: tuple[type[Any], ...] = tuple(one for one in types if one is not None)
        self.strict_type = strict_type
        self._lock = threading.RLock()
        self._async_lock = asyncio.Lock()
        self._items: dict[UUID, ElementT] = {i.id: i for i in self._validate_items(collections)}
        self.progression: Progression = Progression(self._items if order is None else order)
        if sorted(self.progression.order) != sorted(self._items):
            raise ValidationError(
                "The order names other ids than those of the items.", fix="Name each item once."
            )

    def _validate_items(self, items: Any) -> list[ElementT]:
        many = isinstance(items, Iterable) and not isinstance(items, (str, Element))
        found = list(items.values() if isinstance(items, Mapping) else items) if many else [items]
        for item in found:
            right = isinstance(item, self.item_type or Element)
            if right and self.strict_type and self.item_type:
                right = type(item) in self.item_type
            if not right:
                names = ", ".join(one.__name__ for one in self.item_type) or "Element"
                raise ValidationError(
                    f"{item!r:.80} is no {names}.", fix="Give elements of the pile's type."
                )
        return found

    def _new_pile(self, items: Iterable[ElementT]) -> Pile[ElementT]:
        return Pile(list(items), self.item_type or None, strict_type=self.strict_type)

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return bool(self._items)

    def __iter__(self) -> Iterator[ElementT]:
        # The order as it stands now; what is taken out meanwhile is passed over.
        return (self._items[one] for one in self.progression if one in self._items)

    def __contains__(self, ref: ElementRef) -> bool:
        try:
            return all(one in self._items for one in _to_ids(ref))
        except ItemNotFoundError:
            return False

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, type):
            return self.filter_by_type(key)
        if isinstance(key, slice):
            return self._new_pile([self._items[one] for one in self.progression.order[key]])
        if callable(key):
            return self.filter(key)
        return self.get(key)

    def __setitem__(self, key: Any, item: ElementT) -> None:
        self.insert(self.progression.index(key) if key in self else len(self), item)

    def __or__(self, other: Iterable[ElementT]) -> Pile[ElementT]:
        return self._new_pile([*self, *(item for item in other if item not in self)])

    def __and__(self, other: Iterable[ElementT]) -> Pile[ElementT]:
        kept = {item.id for item in other}
        return self._new_pile(item for item in self if item.id in kept)

    def __sub__(self, other: Iterable[ElementT]) -> Pile[ElementT]:
        gone = {item.id for item in other}
        return self._new_pile(item for item in self if item.id not in gone)

    def __xor__(self, other: Iterable[ElementT]) -> Pile[ElementT]:
        others = self._new_pile(other)
        return self._new_pile([*(self - others), *(others - self)])

    def get(self, ref: Any, default: Any = _MISSING) -> Any:
        """Return an item by id, item or place.

        Raises:
            ItemNotFoundError: It is not there, and there is no default.
        """
        with self._lock:
            try:
                return self._items[self._id(ref)]
            except (KeyError, ItemNotFoundError):
                if default is not _MISSING:
                    return default
                raise ItemNotFoundError(
                    f"{ref!r} is not in the pile.", fix="Look with 'in' first, or give a default."
                ) from None

    def _id(self, ref: Any) -> UUID:
        return self.progression[ref] if isinstance(ref, int) else to_id(ref)

    def pop(self, ref: Any = -1, default: Any = _MISSING) -> Any:
        """Take an item out and return it.

        Raises:
            ItemNotFoundError: It is not there, and there is no default.
        """
        with self._lock:
            item = self.get(ref, default)
            if isinstance(item, Element):
                self.exclude(item)
            return item

    def remove(self, ref: ElementRef) -> None:
        """Take an item out.

        Raises:
            ItemNotFoundError: It is not there.
        """
        self.pop(ref)

    def include(self, items: Any) -> bool:
        """Add what is not there yet; tell whether anything was.

        Raises:
            ValidationError: An item is of another type; then nothing is added.
        """
        with self._lock:
            new = {i.id: i for i in self._validate_items(items) if i.id not in self._items}
            self._items |= new
            return self.progression.include(list(new)) if new else False

    def exclude(self, refs: Any) -> bool:
        """Take out what is there; tell whether anything was."""
        with self._lock:
            for one in _to_ids(refs):
                self._items.pop(one, None)
            return self.progression.exclude(refs)

    def insert(self, position: int, item: ElementT) -> None:
        """Put a new item at a place.

        Raises:
            ItemExistsError: It is there already.
            ValidationError: It is of another type.
        """
        with self._lock:
            (item,) = self._validate_items(item)
            if item.id in self._items:
                raise ItemExistsError(
                    f"{item.id} is in the pile already.", fix="Use update() to replace it."
                )
            self._items[item.id] = item
            self.progression.insert(position, item)

    def append(self, item: ElementT) -> None:
        """Put a new item at the end; see :meth:`insert`."""
        self.insert(len(self), item)

    def update(self, items: Any) -> None:
        """Add items; those of an id that is there replace it at its place.

        Raises:
            ValidationError: An item is of another type; then nothing is changed.
        """
        with self._lock:
            given = {item.id: item for item in self._validate_items(items)}
            self._items |= given
            self.progression.include(list(given))

    def clear(self) -> None:
        """Take everything out."""
        with self._lock:
            self._items.clear()
            self.progression.order.clear()

    def filter(self, predicate: Callable[[ElementT], bool]) -> Pile[ElementT]:
        """Return a pile of the items for which ``predicate`` says so."""
        return self._new_pile(item for item in self if predicate(item))

    def filter_by_type(self, item_type: Any, *, strict: bool = False) -> Pile[ElementT]:
        """Return a pile of the items of a class, or of several."""
        kinds = tuple(item_type) if isinstance(item_type, (list, tuple, set)) else (item_type,)
        return self.filter(lambda item: type(item) in kinds if strict else isinstance(item, kinds))

    def dump(self, path: str | os.PathLike[str], format: str = "json") -> None:  # noqa: A002  the documented name
        """Write all items to a file, whole or not at all.

        Args:
            path: The file.
            format: ``json`` (a list), or ``csv`` (nested values as JSON).

        Raises:
            ValidationError: Another format.
        """
        rows = [item.to_dict() for item in self]
        if format == "json":
            write_atomic(path, json.dumps(rows, indent=2, ensure_ascii=False))
            return
        if format != "csv":
            raise ValidationError(f"{format!r} is no format.", fix="Use 'json' or 'csv'.")
        nested = (dict, list, bool, type(None))
        cells = [
            {k: json.dumps(v) if isinstance(v, nested) else v for k, v in row.items()}
            for row in rows
        ]
        write_atomic(path, to_csv(cells))

    async def __aenter__(self) -> Pile[ElementT]:
        await self._async_lock.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._async_lock.release()

    ainclude: ClassVar[Callable[..., Awaitable[Any]]] = _with_async_lock(include)
    aexclude: ClassVar[Callable[..., Awaitable[Any]]] = _with_async_lock(exclude)
    aupdate: ClassVar[Callable[..., Awaitable[Any]]] = _with_async_lock(update)
    apop: ClassVar[Callable[..., Awaitable[Any]]] = _with_async_lock(pop)
    aget: ClassVar[Callable[..., Awaitable[Any]]] = _with_async_lock(get)
