"""GitHub's REST interface through PyGithub: a few questions and a few acts, and what each refusal means.

Works with GitHub Enterprise by its base URL (`https://HOST/api/v3`). The token is read from the environment and stands in
no message.
"""

import datetime
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

from ..agents.secrets import Scrubber, scrubber

TOKENS = ("GITHUB_TOKEN", "GH_TOKEN")
TOKEN_FILE = "GITHUB_TOKEN_FILE"
API = "GITHUB_API_URL"
DEFAULT = "https://api.github.com"
RETRIES, BACKOFF, SECONDS = 4, 0.5, 30


class Pull(Frozen):
    """A pull request as it stands on the forge."""

    number: int
    url: str
    draft: bool
    title: str
    body: str
    head: str
    """Commit id"""
    base: str
    """Branch"""


class Found(Frozen):
    """Another open pull request that may do the same."""

    number: int
    url: str
    title: str


def token(environment: Mapping[str, str] = os.environ) -> str:
    """The token: $GITHUB_TOKEN, $GH_TOKEN, or the content of the file that $GITHUB_TOKEN_FILE names. UserError without."""
    found = next((value for name in TOKENS if (value := environment.get(name, "").strip())), "")
    if not found and (name := environment.get(TOKEN_FILE)):
        try:
            found = Path(name).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise UserError(f"cannot read the file that {TOKEN_FILE} names", "correct the variable") from None
    if not found:
        raise UserError("no token for the forge", f"set {TOKENS[0]}, or {TOKEN_FILE} to a file that holds it")
    if not all(33 <= ord(character) <= 126 for character in found):
        raise UserError("the forge's token has characters that no token has", f"set {TOKENS[0]} again")
    return found


class GitHub:
    """One repository on one forge."""

    def __init__(
        self, repository: str, secret: str, *, base_url: str | None = None, backoff: float = BACKOFF, pause: float = 0.2,
        environment: Mapping[str, str] = os.environ,
    ) -> None:  # fmt: skip
        """`repository`: owner/name. `base_url`: by default $GITHUB_API_URL, else github.com's.

        UserError where PyGithub is missing, or the URL would send the token in clear over a network.
        """
        try:
            import github
            from urllib3.util import Retry
        except ImportError:
            raise UserError("the package PyGithub is not installed", "pip install 'fasttrack[forge]'") from None
        self._errors = github
        self.repository = repository
        self.scrub: Scrubber = scrubber(environment, secret)
        url = (base_url or environment.get(API) or DEFAULT).rstrip("/")
        parts = urlsplit(url)
        if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise UserError("the forge's address is not https: the token would travel in clear", f"correct --api or {API}")
        if parts.username or parts.password:
            raise UserError("the forge's address holds a name or a password", f"leave them out; set {TOKENS[0]}")
        # A request that was answered by a 5xx, or by nobody, is asked again. That is safe for what is asked here: a pull
        # request that was opened all the same is found by the next attempt.
        retry = Retry(total=RETRIES, backoff_factor=backoff, status_forcelist=(500, 502, 503, 504), allowed_methods=None,
                      respect_retry_after_header=False, raise_on_status=False)  # fmt: skip
        self._client = github.Github(
            auth=github.Auth.Token(secret), base_url=url, timeout=SECONDS, retry=retry, seconds_between_writes=pause,
            seconds_between_requests=0, user_agent="fasttrack",
        )  # fmt: skip
        self._host = parts.hostname

    def check(self, base: str, *, push: bool = True) -> None:
        """UserError unless the repository is there, has the branch `base`, and with `push` takes pushes from this token."""
        with self._told(f"read {self.repository}", absent="it is not there, or the token may not see it"):
            repository = self._repository()
            if (name := str(repository.raw_data.get("full_name"))).casefold() != self.repository.casefold():
                raise UserError(f"{self._host} answers for {name!r} where {self.repository} was asked for",
                                "if it was renamed, name it so: --repository")  # fmt: skip
            if repository.archived:
                raise UserError(f"{self.repository} is archived: it takes no changes", "name another --repository")
            # What the token may do. Some tokens are not told; then the push says it.
            allowed = repository.raw_data.get("permissions")
            if push and allowed is not None and not allowed.get("push"):
                raise UserError(f"the token may not push to {self.repository}",
                                "use a token with write access, or push to a fork and name its owner with --head-owner")  # fmt: skip
        with self._told(f"read branch {base}", absent="there is no such branch"):
            repository.get_branch(base)

    def open_pull(self, owner: str, branch: str, base: str) -> Pull | None:
        """The open pull request from `owner`'s `branch` into `base`; None where there is none."""
        with self._told("list pull requests"):
            found = list(self._repository().get_pulls(state="open", head=f"{owner}:{branch}", base=base))
            return _pull(found[0]) if found else None

    def duplicates(self, words: Sequence[str], but: int | None = None) -> tuple[Found, ...]:
        """Open pull requests that hold all `words` in title or body, `but` left out; ten at most."""
        query = " ".join([f"repo:{self.repository}", "is:pr", "is:open", *(f'"{word}"' for word in words)])
        with self._told("search for duplicates"):
            results = self._client.search_issues(query)
            found = [one for _, one in zip(range(11), results, strict=False) if one.number != but]
            return tuple(Found(number=one.number, url=one.html_url, title=one.title) for one in found[:10])

    def create(self, *, head: str, base: str, title: str, body: str, labels: Sequence[str] = ()) -> Pull:
        """Opens a draft. `head`: owner:branch. Where one was opened meanwhile, that one is returned."""
        with self._told("open the pull request", absent="the repository or the branch is not there for this token"):
            repository = self._repository()
            try:
                made = repository.create_pull(base=base, head=head, title=title, body=body, draft=True,
                                              maintainer_can_modify=True)  # fmt: skip
            except self._errors.GithubException as error:
                if error.status != 422 or "already exists" not in str(error.data):
                    raise
                (made, *_) = repository.get_pulls(state="open", head=head, base=base)
            told = _pull(made)
            self._label(made, labels)
        return told

    def update(self, number: int, *, title: str, body: str) -> Pull:
        """New title and body."""
        with self._told(f"update pull request {number}"):
            held = self._repository().get_pull(number)
            held.edit(title=title, body=body)
            return _pull(held)

    def ready(self, number: int) -> None:
        """Takes a pull request out of draft."""
        with self._told(f"mark pull request {number} ready"):
            self._repository().get_pull(number).mark_ready_for_review()

    def draft(self, number: int) -> None:
        """Puts a pull request back into draft."""
        with self._told(f"make pull request {number} a draft"):
            self._repository().get_pull(number).convert_to_draft()

    def close(self) -> None:
        """Closes connections."""
        self._client.close()

    def _repository(self) -> Any:
        return self._client.get_repo(self.repository)

    def _label(self, pull: Any, labels: Sequence[str]) -> None:
        """Labels are a help: a token that may not set them, or a label that is not there, stops nothing."""
        if not labels:
            return
        try:
            pull.add_to_labels(*labels)
        except self._errors.GithubException as error:
            if error.status not in (403, 404, 422):
                raise

    @contextmanager
    def _told(self, what: str, absent: str = "it is not there for this token") -> Iterator[None]:
        """Every way of failing as one message with a way on, without the token."""
        import requests

        try:
            yield
        except self._errors.RateLimitExceededException as error:
            raise UserError(f"cannot {what}: the forge's rate limit is used up", f"try again {_when(error.headers)}") from None
        except self._errors.BadCredentialsException:
            raise UserError(f"cannot {what}: the forge does not take the token", f"set {TOKENS[0]} to one that is valid") from None
        except self._errors.GithubException as error:
            raise UserError(*self._means(what, error, absent)) from None
        except (requests.RequestException, OSError) as error:
            raise UserError(f"cannot {what}: {self._host} cannot be reached ({type(error).__name__})",
                            "look at the network and the address; the same command goes on from here") from None  # fmt: skip
        except UserError:
            raise
        except Exception as error:
            # PyGithub believes what a server says: an answer of another form, or a redirection or address that leads to
            # another host (where the token may not go), ends in whatever exception comes first.
            said = self.scrub(" ".join(str(error).split())[:200])
            raise UserError(f"cannot {what}: what {self._host} answered is no answer of a forge ({type(error).__name__}: {said})",
                            f"look at the address of the forge's REST interface: --api or {API}") from error  # fmt: skip

    def _means(self, what: str, error: Any, absent: str) -> tuple[str, str]:
        said = self.scrub(" ".join(_words(error.data))[:300])
        how: Callable[[int], str] = {
            401: "set the token again", 403: "use a token with write access to pull requests",
            404: "look at the repository's name and at what the token may see", 410: "look at the repository's settings",
            422: "correct what the forge names",
        }.get  # fmt: skip
        if error.status == 404:
            said = absent
        return f"cannot {what}: {said or f'status {error.status}'}", how(error.status) or "run the same command again later"


def _words(data: object) -> Iterator[str]:
    """What a refusal says: its message, and that of each of its errors."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for key in ("message", "field", "code"):
            if isinstance(data.get(key), str):
                yield data[key]
        for one in data["errors"] if isinstance(data.get("errors"), list) else ():
            yield from _words(one)


def _when(headers: Mapping[str, str] | None) -> str:
    """When a rate limit ends, in words."""
    try:
        ends = datetime.datetime.fromtimestamp(int((headers or {})["x-ratelimit-reset"]), datetime.UTC)
        return f"after {ends:%H:%M} UTC"
    except (KeyError, ValueError, OverflowError):
        return "in an hour"


def _pull(one: Any) -> Pull:
    return Pull(number=one.number, url=one.html_url, draft=bool(one.draft), title=one.title, body=one.body or "",
                head=one.head.sha, base=one.base.ref)  # fmt: skip
