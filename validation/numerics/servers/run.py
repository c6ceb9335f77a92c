"""The comparison, from two addresses to a verdict: who they are, every piece of every prompt, what follows."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import Field

from ...errors import UserError
from ...records import Frozen
from .client import Server
from .compare import CANDIDATE, ORACLE, STOCK, ServersVerdict, judged, scores
from .forms import Form, Refused
from .identity import Identity, comparable, different_builds
from .journal import Journal, Piece, kept
from .prompts import cuts, digest, prompts

RECORDS = "servers.jsonl"
Say = Callable[[str, int], None]
"""(arm, tokens of it that are known now)"""


class Settings(Frozen):
    """How servers are compared."""

    top: int = Field(default=8, ge=2, description="candidates of each token")
    piece: int = Field(default=4096, ge=1, description="tokens of a piece, of the first one where ends double")
    replicas: int = Field(default=2, ge=1, description="how often the stock server is asked again")
    at_once: int = Field(default=4, ge=1, description="requests under way where the stock server is asked again")


class Arms:
    """The servers by role; controls are called control-1 and so on."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        """Raises Refused where they cannot be compared."""
        self.servers = dict(servers)
        told = {name: server.identity() for name, server in self.servers.items()}
        self.who: dict[str, Identity] = {name: identity for name, (identity, _) in told.items()}
        self.forms: dict[str, Form] = {name: form for name, (_, form) in told.items()}
        for name in self.who:
            if name != STOCK:
                comparable(self.who[STOCK], self.who[name], name, other_dtype=name == ORACLE)
        different_builds(self.who)

    def unchanged(self) -> None:
        """Raises Refused where a server is not what it was at the beginning."""
        for name, server in self.servers.items():
            now, _ = server.identity()
            if now != self.who[name]:
                raise Refused("changed", f"the {name} server is another one than at the beginning: {now.build}")

    def same_tokens(self) -> None:
        """Raises Refused where two servers name one token differently."""
        stock = self.servers[STOCK].texts
        for name, server in self.servers.items():
            for token, texts in server.texts.items():
                if token in stock and not texts & stock[token]:
                    one, two = sorted(stock[token])[0], sorted(texts)[0]
                    raise Refused("tokenizer", f"token {token} is {one!r} to the stock server, {two!r} to {name}")


def compare(
    arms: Arms, file: Path, out: Path, settings: Settings, say: Say = lambda arm, known: None
) -> ServersVerdict:
    """Scores what is not kept yet in `out`, and judges. Raises UserError, and Refused."""
    about = {
        "tokens": digest(file), "settings": settings.model_dump(exclude={"at_once"}),
        "servers": {name: who.model_dump(mode="json") for name, who in arms.who.items()},
        "forms": {name: str(form) for name, form in arms.forms.items()},
    }  # fmt: skip
    roles = {**{name: name for name in arms.servers}, **{f"again-{n}": STOCK for n in range(1, settings.replicas + 1)}}
    journal = Journal(out / RECORDS, about)
    try:
        for arm, role in roles.items():
            _score(arms, arm, role, file, journal, settings, say)
            arms.unchanged()
            arms.same_tokens()
    finally:
        journal.close()
    return judged(scores(journal.read(), list(roles)))


def rejudged(out: Path) -> ServersVerdict:
    """The verdict anew, from what is kept in `out`. UserError where that is not all of it."""
    about, pieces = kept(out / RECORDS)
    again = [f"again-{n}" for n in range(1, about["settings"]["replicas"] + 1)]
    try:
        return judged(scores(pieces, [*about["servers"], *again]))
    except (ValueError, IndexError) as error:
        raise UserError(f"{out / RECORDS} is not complete: {error}", "run the comparison to its end first") from error


def _score(
    arms: Arms, arm: str, role: str, file: Path, journal: Journal, settings: Settings, say: Say
) -> None:  # fmt: skip
    """Every piece of one arm that is not kept. Prompts are read one after the other, never all at once."""
    form, known = arms.forms[role], 0

    def one(prompt: str, tokens: Sequence[int], start: int, end: int) -> int:
        if (arm, prompt, start) not in journal.keys:
            found = arms.servers[role].scores(form, arms.who[role], tokens[:end], start, settings.top)
            journal.add(Piece.of(arm, prompt, start, found))
        return end - start

    # Asked again, the stock server gets several requests at once: other neighbours in its batches.
    with ThreadPoolExecutor(settings.at_once if arm.startswith("again") else 1) as pool:
        under_way = []
        try:
            for prompt, tokens in prompts(file):
                for start, end in cuts(len(tokens), settings.piece, form):
                    under_way.append(pool.submit(one, prompt, tokens, start, end))
                    while len(under_way) >= 2 * settings.at_once:
                        known += under_way.pop(0).result()
                        say(arm, known)
            while under_way:
                known += under_way.pop(0).result()
                say(arm, known)
        finally:
            for left in under_way:
                left.cancel()


__all__ = ["CANDIDATE", "ORACLE", "STOCK", "Arms", "Settings", "compare", "rejudged"]
