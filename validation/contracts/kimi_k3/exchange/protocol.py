"""What ranks do in an exchange: the protocol as data, and the rules by which its states follow from each other.

Every rank owns a mailbox of `depth` slots for each (source, row). In exchange n a rank *publishes*: it stores its share
of every row into a slot of every peer's mailbox. Then it *takes*: it polls its own mailbox until each peer's share is
there. A rank does n + 1 after n, and publishes n + 1 when all of n was taken (a kernel boundary or a grid barrier; with
`early_publish` it does not wait). Steps replay different batches, so a row is not part of every exchange.

How a reader knows that a slot holds what it waits for is the protocol:

tagged    Each word carries the number of the exchange, counted for each row by itself, in the same single store as its
          data. Nothing is ever cleared.
sentinel  A slot holds a value that no data has until it is written; who took it *arms* it again.

The memory is weak: stores of one rank to different words arrive in any order, unless `fence` holds the next exchange's
stores back until the arming has arrived. A word is one store, unless `torn`, where tag and data are two.

Pure. A state is a tuple of ranks, mailboxes and stores under way; `moves` yields every state that can come next.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

TAGGED, SENTINEL = "tagged", "sentinel"


@dataclass(frozen=True)
class Faults:
    """What may happen to ranks: `killed` stops for good at any moment; every rank may give up waiting at any moment."""

    killed: int | None = None
    give_up: bool = False


@dataclass(frozen=True)
class Plan:
    """What is replayed: `batches[s]` rows in step s, each with `exchanges` exchanges; a rank may replay other batches."""

    ranks: int
    batches: tuple[int, ...]
    exchanges: int
    other: tuple[int, tuple[int, ...]] | None = None
    """(rank, the batches that it replays instead)"""
    uses: tuple[tuple[int, ...], ...] = ()
    """Of each exchange of a step, the rows that it uses; it counts for the others as well. All, if empty. So a row can stand
    for a word that only some kinds of exchange need"""

    def taking_part(self, rank: int, number: int) -> tuple[int, ...]:
        """The rows of exchange `number`, as `rank` sees it."""
        step, within = divmod(number, self.exchanges)
        return tuple(row for row in range(self.rows(rank, step)) if not self.uses or row in self.uses[within])

    def rows(self, rank: int, step: int) -> int:
        """How many rows a rank takes part with in a step."""
        batches = self.other[1] if self.other and self.other[0] == rank else self.batches
        return batches[step]

    @property
    def total(self) -> int:
        """Exchanges of all steps."""
        return len(self.batches) * self.exchanges


@dataclass(frozen=True)
class Protocol:
    """One way to run an exchange. The defaults are the one that the kernels use."""

    kind: str = TAGGED
    depth: int = 2
    tag_bits: int = 16
    slot_by_row: bool = True
    """The slot follows each row's own count of exchanges; otherwise the exchange's number within its step"""
    tag_by_row: bool = True
    """So does the tag; otherwise it counts all exchanges"""
    early_publish: bool = False
    fence: bool = True
    torn: bool = False

    def place(self, plan: Plan, rank: int, number: int, row: int) -> tuple[int, int]:
        """(slot, tag) of a row in exchange `number`, as `rank` sees it."""
        step, within = divmod(number, plan.exchanges)
        own = sum(plan.exchanges for s in range(step) if row < plan.rows(rank, s)) + within
        slot = (own if self.slot_by_row else within) % self.depth
        return slot, ((own if self.tag_by_row else number) + 1) % (1 << self.tag_bits)


class Word(NamedTuple):
    """What a slot holds: a tag (None: armed, or never written) and whose share of what it is."""

    tag: int | None = None
    data: tuple[int, int, int] | None = None
    """(exchange, source, row)"""


class Store(NamedTuple):
    """A store under way: `part` says whether it brings tag, data or both."""

    source: int
    owner: int
    address: tuple[int, int, int] = ()
    """(source of the share, row, slot); none for the word by which a rank that gives up stops another"""
    word: Word = Word()
    part: str = "both"
    arming: bool = False


class Rank(NamedTuple):
    """Where a rank is: in which exchange, whether it published, what it took. `stopped`: it gave up, or was `told` to."""

    number: int = 0
    published: bool = False
    ahead: bool = False
    """Whether it has published the next exchange too"""
    taken: frozenset[tuple[int, int]] = frozenset()
    told: bool = False
    stopped: bool = False
    dead: bool = False


class State(NamedTuple):
    """All ranks, all mailboxes (one dict a rank as sorted items), all stores under way, who was told to stop."""

    ranks: tuple[Rank, ...]
    boxes: tuple[tuple[tuple[tuple[int, int, int], Word], ...], ...]
    stores: frozenset[Store]


class WrongValue(Exception):
    """A rank took something else than what it waited for."""


def start(plan: Plan) -> State:
    """Nothing published, all slots empty."""
    return State(tuple(Rank() for _ in range(plan.ranks)), tuple(() for _ in range(plan.ranks)), frozenset())


def finished(plan: Plan, state: State) -> bool:
    """Whether every rank is through, or has stopped, or is gone."""
    return all(rank.number == plan.total or rank.stopped or rank.dead for rank in state.ranks)


def moves(protocol: Protocol, plan: Plan, faults: Faults, state: State) -> Iterator[tuple[str, State]]:
    """(what happens, the state after it), for everything that can happen next. Raises WrongValue."""
    for store in state.stores:
        what = f"{store.part} of {store.word.data}" if store.address else f"the stop of rank {store.source}"
        yield f"{what} reaches rank {store.owner}", _arrived(state, store)
    for index, rank in enumerate(state.ranks):
        if rank.number == plan.total or rank.stopped or rank.dead:
            continue
        if faults.killed == index:
            yield f"rank {index} is killed", _with(state, index, rank._replace(dead=True))
        held = protocol.fence and any(s.arming and s.source == index for s in state.stores)
        if not rank.published:
            if not held:
                after = _with(state, index, rank._replace(published=True))
                yield f"rank {index} publishes {rank.number}", _published(protocol, plan, after, index, rank.number)
            continue
        missing = _waited_for(plan, index, rank) - rank.taken
        if not missing:
            done = Rank(rank.number + 1, published=rank.ahead, told=rank.told)
            yield f"rank {index} is through exchange {rank.number}", _with(state, index, done)
        elif rank.told:
            yield f"rank {index} stops", _with(state, index, rank._replace(stopped=True))
        if protocol.early_publish and missing and not rank.ahead and not held and rank.number + 1 < plan.total:
            after = _with(state, index, rank._replace(ahead=True))
            yield f"rank {index} publishes {rank.number + 1}", _published(protocol, plan, after, index, rank.number + 1)
        for source, row in sorted(missing):
            if (after := _took(protocol, plan, state, index, source, row)) is not None:
                yield f"rank {index} takes row {row} of rank {source} in exchange {rank.number}", after
        if faults.give_up and missing:
            yield f"rank {index} gives up in exchange {rank.number}", _stopped(state, index)


def _waited_for(plan: Plan, index: int, rank: Rank) -> frozenset[tuple[int, int]]:
    rows = plan.taking_part(index, rank.number)
    return frozenset((source, row) for source in range(plan.ranks) if source != index for row in rows)


def _published(protocol: Protocol, plan: Plan, state: State, index: int, number: int) -> State:
    stores = set(state.stores)
    for row in plan.taking_part(index, number):
        slot, tag = protocol.place(plan, index, number, row)
        word = Word(tag if protocol.kind == TAGGED else None, (number, index, row))
        for owner in range(plan.ranks):
            if owner != index:
                for part in ("tag", "data") if protocol.torn else ("both",):
                    stores.add(Store(index, owner, (index, row, slot), word, part))
    return state._replace(stores=frozenset(stores))


def _took(protocol: Protocol, plan: Plan, state: State, index: int, source: int, row: int) -> State | None:
    """The state after a share was taken; None where it is not there yet, by all that the reader can see."""
    rank = state.ranks[index]
    slot, tag = protocol.place(plan, index, rank.number, row)
    address = (source, row, slot)
    word = dict(state.boxes[index]).get(address, Word())
    there = word.tag == tag if protocol.kind == TAGGED else word.data is not None
    if not there:
        return None
    if word.data != (rank.number, source, row):
        raise WrongValue(f"rank {index} takes {word.data} for exchange {rank.number}, row {row} of rank {source}")
    after = _with(state, index, rank._replace(taken=rank.taken | {(source, row)}))
    if protocol.kind == SENTINEL:
        arming = Store(index, index, address, Word(), arming=True)
        after = after._replace(stores=after.stores | {arming})
    return after


def _arrived(state: State, store: Store) -> State:
    if not store.address:
        after = _with(state, store.owner, state.ranks[store.owner]._replace(told=True))
        return after._replace(stores=state.stores - {store})
    box = dict(state.boxes[store.owner])
    held = box.get(store.address, Word())
    box[store.address] = {
        "both": store.word, "tag": held._replace(tag=store.word.tag), "data": held._replace(data=store.word.data),
    }[store.part]  # fmt: skip
    boxes = list(state.boxes)
    boxes[store.owner] = tuple(sorted(box.items()))
    return state._replace(boxes=tuple(boxes), stores=state.stores - {store})


def _stopped(state: State, index: int) -> State:
    """A rank that gives up stores to every other that it did, and they stop where they next poll."""
    words = {Store(index, owner) for owner in range(len(state.ranks)) if owner != index}
    after = _with(state, index, state.ranks[index]._replace(stopped=True))
    return after._replace(stores=state.stores | words)


def _with(state: State, index: int, rank: Rank) -> State:
    ranks = list(state.ranks)
    ranks[index] = rank
    return state._replace(ranks=tuple(ranks))
