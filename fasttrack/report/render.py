"""Renders a report to Markdown and to one self-contained HTML page."""

import html
import importlib.resources
import re
from functools import cache
from urllib.parse import quote

import jinja2

from fasttrack_validation.claims.cells import Measured, Ratio, speedup

from ..confinement.names import invisible
from .charts import BAR, envelope_map, shortened, timelines
from .data import ReportData
from .drawing import BOX, draw
from .exchange import findings
from .headline import asked, extremes, whole
from .model_level import charts
from .token_charts import token_charts

_MARKDOWN = re.compile(r"([\\`*_\[\]|~]|^[#+-])")
_LIST_NUMBER = re.compile(r"^(\d+)([.)])(?=\s|$)")


def visible(text: object) -> str:
    """Text with every invisible or reordering character escaped, so that what is shown is what is there."""
    return "".join(c if c in "\n\t" or not invisible(c) else c.encode("unicode_escape").decode() for c in str(text))


def markdown(text: object) -> str:
    """Text as Markdown that shows it literally on one line: no markup, no HTML, no mentions, no links."""
    flat = " ".join(visible(text).split())
    flat = html.escape(_LIST_NUMBER.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\1", flat)), quote=False).replace("@", "&#64;")
    return flat.replace("://", "&#58;//").replace("www.", "www&#46;")


def own_words(text: object) -> str:
    """A person's paragraph in a body that is rendered again: as it was written, but for mentions, HTML and headings.

    What is escaped already stays as it is, so that rendering twice gives the same.
    """
    flat = html.escape(html.unescape(" ".join(visible(text).split())), quote=False).replace("@", "&#64;")
    return re.sub(r"^([#>`~=-]|\d+[.)])", r"\\\1", flat)


def paragraphs(text: str) -> list[str]:
    """A person's text at its blank lines."""
    return [part.strip() for part in re.split(r"\n\s*\n", visible(text)) if part.strip()]


def code(text: object) -> str:
    """Text as a Markdown code span that nothing inside can end, nor split a table's cell."""
    flat = " ".join(visible(text).split())
    if "\\|" in flat:
        # In a table a backslash makes any pipe text, but two of them make a backslash and a pipe that splits.
        return "<code>" + "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in flat) + "</code>"
    flat = flat.replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", flat)), default=0) + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def link(path: str) -> str:
    """The address of a file of the model directory, from the report's own directory."""
    return "../" + quote(path, safe="/._-")


def microseconds(value: float) -> str:
    """A time with three significant digits, and its unit."""
    return f"{value:#.3g}".rstrip(".") + " µs" if value < 999.5 else f"{value:,.0f} µs"


def time(value: float) -> str:
    """Microseconds with three significant digits, as milliseconds where they are thousands."""
    return microseconds(value) if value < 1000 else f"{value / 1000:#.3g}".rstrip(".") + " ms"


def spread(figure) -> str:
    """The ends around a median, their unit left to it where it is the same."""
    (middle, unit), *ends = (time(value).split(" ") for value in (figure.median, figure.low, figure.high))
    return " to ".join(value if own == unit else f"{value} {own}" for value, own in ends)


def error(value: float) -> str:
    """A relative error: two significant digits."""
    return "0" if value == 0 else f"{value:.1e}"


def ratio(candidate: float, plain: float) -> str:
    """Candidate over plain path; a quotient by zero is never printed."""
    return f"{candidate / plain:.2f}" if plain else "both exact" if not candidate else "plain path exact"


def literal(text: str) -> str:
    """Text as a literal of Python, so that spaces and ends of lines are seen."""
    return repr(str(text))


def count(value: int) -> str:
    """An integer with thin groups."""
    return f"{value:,}".replace(",", "\u202f")


def cell_lines(cell) -> tuple[tuple[str, str], ...]:
    """(kind, text) lines of one grid cell: measured, missing, modelled, ratio or withheld."""
    if not isinstance(cell.candidate, Measured):
        lines = [("missing", f"not measured: {cell.candidate.reason}")]
        if cell.candidate.modelled:
            lines.append(
                ("modelled", f"modelled {microseconds(cell.candidate.modelled.microseconds)}, not a measurement")
            )
        return tuple(lines)
    lines = [("measured", f"{microseconds(cell.candidate.microseconds)} ({microseconds(cell.candidate.low)} to "
              f"{microseconds(cell.candidate.high)})")]  # fmt: skip
    if isinstance(cell.stock, Measured):
        lines.append(("stock", f"stock {microseconds(cell.stock.microseconds)}"))
    else:
        lines.append(("missing", f"stock not measured: {cell.stock.reason}"))
    factor = speedup(cell.candidate, cell.stock)
    lines.append(("ratio", f"{factor.value:.2f}× ({factor.low:.2f} to {factor.high:.2f})") if isinstance(factor, Ratio)
                 else ("withheld", f"no multiplier: {factor.reason}"))  # fmt: skip
    return tuple(lines)


def worst(layer) -> tuple:
    """(ruling, stock's ruling of the same tensor or None, how many tensors) of the tensor that stands worst at p99.9."""
    pairs = paired(layer)
    return max(pairs, key=lambda pair: _standing(pair[0])) + (len(pairs),)


def _standing(ruling) -> tuple[float, float]:
    mine, plain = ruling.candidate.p999, ruling.plain.p999
    return (mine / plain if plain else float("inf") if mine else 0.0), mine


def merged(rows) -> tuple[tuple[str, str], ...]:
    """(what, why) rows with those of one reason in one row."""
    found: dict[str, list[str]] = {}
    for what, why in rows:
        found.setdefault(why, []).append(what)
    return tuple(("; ".join(held), why) for why, held in found.items())


def by_reason(layers) -> tuple[tuple[str, tuple], ...]:
    """(reason, layers) of those that were not run, one row a reason; what failed is told cell by cell."""
    found: dict[str, list] = {}
    for layer in layers:
        if layer.outcome.kind == "not_run":
            found.setdefault(layer.outcome.reason, []).append(layer)
    return tuple((reason, tuple(held)) for reason, held in found.items())


def by_mechanism(risks) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(mechanism, question, places) of the risks, one row a mechanism."""
    found: dict[tuple[str, str], list[str]] = {}
    for risk in risks:
        found.setdefault((risk.mechanism, risk.ask), []).append(risk.where)
    return tuple((mechanism, ask, tuple(places)) for (mechanism, ask), places in sorted(found.items()))


def source_link(where: str) -> str | None:
    """The address of the file that a risk names first, at its first line; None where it names none."""
    found = re.match(r"([\w./-]+\.(?:py|cuh?|h|hpp)), line (\d+)", where)
    return f"{link(found[1])}#L{found[2]}" if found else None


def paired(layer) -> tuple:
    """(specialised ruling, stock's ruling of the same tensor or None) of a measured layer."""
    stock = {one.tensor: one for one in layer.outcome.stock.rulings}
    return tuple((one, stock.get(one.tensor)) for one in layer.outcome.specialised.rulings)


@cache
def environment() -> jinja2.Environment:
    """The templates, with HTML escaped by default and no undefined name let through."""
    root = importlib.resources.files("fasttrack.templates")
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(root)), undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
        autoescape=lambda name: bool(name) and name.endswith(".html.j2"), finalize=_finalize,
    )  # fmt: skip
    made.filters |= {"md": markdown, "code": code, "link": link, "us": microseconds, "time": time, "spread": spread,
                     "error": error, "count": count, "paragraphs": paragraphs, "shortened": shortened, "own_words": own_words,
                     "literal": literal}  # fmt: skip
    made.globals |= {"draw": draw, "ratio": ratio, "cell_lines": cell_lines, "BOX": BOX, "BAR": BAR, "drawn": timelines,
                     "envelope_map": envelope_map, "worst": worst, "merged": merged,
                     "by_mechanism": by_mechanism, "over_positions": charts, "source_link": source_link,
                     "asked": asked, "extremes": extremes, "whole": whole, "findings": findings,
                     "by_reason": by_reason, "token_charts": token_charts}  # fmt: skip
    return made


def _finalize(value: object) -> object:
    return visible(value) if type(value) is str else value


def render(data: ReportData) -> tuple[str, str]:
    """(Markdown, HTML) of the report. Links are relative to `report/` in the model directory."""
    pages = (environment().get_template(f"design_report.{kind}.j2").render(r=data) for kind in ("md", "html"))
    return tuple(re.sub(r"\n{3,}", "\n\n", page).strip() + "\n" for page in pages)
