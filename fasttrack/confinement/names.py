"""What a path may be called: rules over every component, so that one name means one file everywhere."""

import posixpath
import re
import unicodedata
from collections.abc import Iterator

from ..git import display

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp", "Cn", "Co"})
_INVISIBLE_LETTERS = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f")
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_PORTABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+=-]*(\.[A-Za-z0-9_+=-]+)*|\.[A-Za-z0-9_.-]*[A-Za-z0-9_-]")
_SHORT_GIT = re.compile(r"(git|gi[0-9a-f]{4})~[0-9]+", re.IGNORECASE)
_IGNORE_FILE = re.compile(r"\.[a-z]*ignore")

_TOOL_NAMES = frozenset(
    "conftest.py sitecustomize.py usercustomize.py setup.py noxfile.py fabfile.py dodo.py sconstruct sconscript "
    "pipfile pipfile.lock cmakelists.txt cmakepresets.json makefile gnumakefile bsdmakefile justfile rakefile "
    "vagrantfile procfile jenkinsfile brewfile gemfile package.json package-lock.json tsconfig.json "
    "pyrightconfig.json manifest.in meson.build build.ninja build workspace module.bazel codeowners "
    "entry_points.txt pkg-info top_level.txt tslint.json biome.json renovate.json".split()
)
_TOOL_PATTERN = re.compile(
    r".*\.(cfg|ini|pth|toml|ya?ml|conf|properties|mk|mak|cmake|bazel|bzl|gyp|gypi|ninja|lock|egg-link|dist-info"
    r"|egg-info|bat|cmd|ps1|sh|bash|zsh|desktop|service)|(docker|container)file(\..*)?|(.*\.)(docker|container)file"
    r"|makefile\..*|(requirements|constraints).*\.(txt|in)|docker-compose.*|compose\.json"
)
MANIFEST = "fasttrack.toml"
# Read by fasttrack alone: dispatch tables, of fused ops (a+b) too, and design spaces.
OWN_TABLES = re.compile(r"dispatch/[A-Za-z0-9_]+(\+[A-Za-z0-9_]+)*\.toml|kernels/([A-Za-z0-9_]+/)*[A-Za-z0-9_]+\.space\.toml")


def invisible(character: str) -> str | None:
    """The rule that `character` breaks in a name or a text: bidi, control_character, or none."""
    if character in _BIDI:
        return "confinement.bidi"
    if unicodedata.category(character) in _INVISIBLE_CATEGORIES or character in _INVISIBLE_LETTERS:
        return "confinement.control_character"
    return None


def fold(path: str) -> str:
    """`path` as a file system that ignores case and normal form sees it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def check_name(path: str) -> Iterator[tuple[str, str]]:
    """(rule id, message) for each rule that a component of `path` breaks; the manifest is the one configuration."""
    try:
        path.encode()
    except UnicodeEncodeError:
        yield "confinement.encoding", "the name is not UTF-8"
        return
    seen = set()
    for part in path.split("/"):
        for rule, message in _component(part):
            if rule not in seen:
                seen.add(rule)
                yield rule, f"{display(part)!r}: {message}"


def _component(part: str) -> Iterator[tuple[str, str]]:
    hidden = {rule: character for character in part if (rule := invisible(character))}
    found = [(rule, f"character U+{ord(character):04X}") for rule, character in hidden.items()]
    if unicodedata.normalize("NFC", part) != part:
        found.append(("confinement.nfc", "not in normal form C"))
    if "\\" in part:
        found.append(("confinement.backslash", "a backslash"))
    # HFS+ ignores some invisible characters, NTFS streams and trailing dots and spaces: see git's verify_path.
    bare = "".join(c for c in part if not invisible(c)).split(":")[0].rstrip(". ").casefold()
    if bare in {".git", ".gitmodules"} or _SHORT_GIT.fullmatch(bare):
        found.append(("confinement.git_alias", "read as git's own on some systems"))
    elif not part or part in {".", ".."}:
        found.append(("confinement.malformed_tree", "no name at all"))
    elif bare == ".gitattributes":
        found.append(("confinement.gitattributes", "a git attributes file"))
    elif _IGNORE_FILE.fullmatch(bare):
        found.append(("confinement.ignore_file", "an ignore file"))
    elif _DEVICES.fullmatch(part.rstrip(". ")) or part != part.strip(" ") or part.endswith(".") or len(part) > 128:
        found.append(("confinement.reserved_name", "a device name, an outer space, a last dot, or over 128 characters"))
    elif not found and not part.isascii():
        found.append(("confinement.non_ascii", "a letter outside ASCII"))
    elif not found and not _PORTABLE.fullmatch(part):
        found.append(("confinement.reserved_name", "a character that some file systems refuse"))
    return iter(found)


def tool_configuration(relative: str) -> str | None:
    """Why a path (relative to the model directory) is configuration that some tool would pick up; None if it is not."""
    parts = [fold(part) for part in relative.split("/")]
    if relative == MANIFEST or OWN_TABLES.fullmatch(relative) or {"confinement.gitattributes", "confinement.ignore_file", "confinement.git_alias"} & {
        rule for rule, _ in check_name(relative)
    }:
        return None
    hidden = next((part for part in parts if part.startswith(".")), None)
    if hidden:
        return f"{display(hidden)!r}: tools read hidden files"
    for part in parts:
        if part in _TOOL_NAMES or _TOOL_PATTERN.fullmatch(part):
            return f"{display(part)!r} is read by tools" + (f"; the one manifest is {MANIFEST}" * part.endswith("toml"))
    return None


def inside(path: str, directory: str) -> bool:
    """Whether `path` lies below `directory`, component by component."""
    want = directory.split("/")
    parts = path.split("/")
    return len(parts) > len(want) and parts[: len(want)] == want and posixpath.normpath(path) == path
