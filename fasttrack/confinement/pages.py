"""HTML that shows and does nothing: an allow-list of tags and attributes, so that what is unknown is refused."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

_TAGS = frozenset(
    "html head meta title style body header main nav section article footer h1 h2 h3 h4 p a ul ol li dl dt dd div "
    "span strong em small code pre table caption thead tbody tfoot tr th td details summary figure figcaption "
    "hr br abbr time sub sup img svg g rect line path text tspan circle polyline desc defs marker".split()
)
_ATTRIBUTES = re.compile(
    r"id|class|lang|charset|name|content|href|src|alt|title|role|scope|colspan|rowspan|open|tabindex|datetime|aria-[a-z]+"
    r"|viewbox|width|height|x|y|x1|x2|y1|y2|dx|dy|rx|ry|cx|cy|r|d|points|fill|stroke|stroke-width|stroke-dasharray"
    r"|text-anchor|transform|marker-end|orient|refx|refy|markerwidth|markerheight|preserveaspectratio|xmlns"
)
_RELATIVE = re.compile(r"#[\w.-]*|(?!/)(?![^/]*:)[\w./%+=~-]+(#[\w.-]*)?")
_IMAGE = re.compile(r"data:image/(png|jpeg|gif);base64,[A-Za-z0-9+/=]*")
_STYLE = re.compile(r"@import|url\s*\(|expression\s*\(|behavior|-moz-binding|\\|<", re.IGNORECASE)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[tuple[int, str]] = []
        self.style = False

    def refuse(self, message: str) -> None:
        self.found.append((self.getpos()[0], message))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.style = tag == "style"
        if tag not in _TAGS:
            self.refuse(f"<{tag}>")
        for name, value in attrs:
            value = value or ""
            if not _ATTRIBUTES.fullmatch(name):
                self.refuse(f"attribute {name}")
            elif name == "href" and not _RELATIVE.fullmatch(value):
                self.refuse(f"a link that is not relative: {value[:60]!r}")
            elif name == "src" and not _IMAGE.fullmatch(value):
                self.refuse(f"loads {value[:60]!r}")
            elif (
                name in ("fill", "stroke", "marker-end")
                and "(" in value
                and not re.fullmatch(r"(url\(#|var\(--)[\w-]+\)", value)
            ):
                self.refuse(f"{name}={value[:60]!r}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.style = False

    def handle_endtag(self, tag: str) -> None:
        self.style = False
        if tag not in _TAGS:
            self.refuse(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        # A bare "<" in text is where readers of HTML begin to disagree with each other.
        bad = _STYLE.search(data) if self.style else re.search("<", data)
        if bad:
            self.refuse(f"{data[bad.start() : bad.start() + 40]!r}")

    def handle_comment(self, data: str) -> None:
        self.refuse(f"read as a comment: {data[:40]!r}")

    def handle_decl(self, decl: str) -> None:
        if decl.lower() != "doctype html":
            self.refuse(f"<!{decl[:40]}>")


def check_page(text: str) -> Iterator[tuple[int, str]]:
    """(line, what) for everything in an HTML page that could run, load, or lead elsewhere."""
    # Refused before parsing: what is left open makes the parser try again from every position.
    for opener in ("<!--", "<![", "<?"):
        if opener in text:
            return iter([(text.count("\n", 0, text.index(opener)) + 1, opener)])
    if text.rfind("<") > text.rfind(">"):
        return iter([(text.count("\n", 0, text.rfind("<")) + 1, "a tag that never ends")])
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return iter(reader.found)
