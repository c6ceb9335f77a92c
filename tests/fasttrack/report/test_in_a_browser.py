"""The report as a real browser shows it: width, colours, keyboard, network, and paper. Needs Debian's chromium."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fasttrack.report.render import render
from report_layers import HOSTILE, with_layers

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (Debian: apt-get install chromium)"),
]
LONG = "averyveryverylongword" * 12
# What the page says of itself. Contrast by WCAG 2.1, 1.4.3: (L1 + 0.05) / (L2 + 0.05) of relative luminances.
PROBE = """<script>
const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
const lum = c => rgb(c).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if (!/, 0\\)$|transparent/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
const texts = [...document.querySelectorAll('body *')].filter(e => !e.closest('svg, details, script') &&
  [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()));
const contrast = texts.map(e => { const [a, b] = [lum(getComputedStyle(e).color), lum(ground(e))].sort((x, y) => y - x);
  return [(a + .05) / (b + .05), e.className + ' ' + e.textContent.slice(0, 30)]; }).sort((x, y) => x[0] - y[0])[0];
document.querySelectorAll('details').forEach(e => e.open = true);
const tabs = [...document.querySelectorAll('a[href], summary, [tabindex]')];
document.title = JSON.stringify({
  fits: document.documentElement.scrollWidth <= innerWidth, width: innerWidth,
  scrolling: [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.getAttribute('aria-label')),
  resources: performance.getEntriesByType('resource').length, contrast: contrast,
  ground: getComputedStyle(document.body).backgroundColor, positive: tabs.filter(e => e.tabIndex > 0).length,
  named: tabs.filter(e => !(e.textContent.trim() || e.getAttribute('aria-label'))).length,
  focused: tabs.filter(e => { e.focus(); return document.activeElement === e; }).length, tabs: tabs.length,
  outline: (tabs[0].focus(), getComputedStyle(tabs[0]).outlineStyle), active: document.hasFocus(),
  scripts: document.scripts.length, small: texts.filter(e => parseFloat(getComputedStyle(e).fontSize) < 11).length,
});
</script>"""


def browser(place: Path, *arguments: str) -> str:
    """One run of chromium that can reach nothing but files."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={place / 'profile'}", *arguments,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """A page with figures in every place, and one with words that would break a careless page."""
    place = tmp_path_factory.mktemp("pages")
    found = {}
    for name, message in (("calm", ""), ("hostile", HOSTILE + LONG)):
        path = place / f"{name}.html"
        path.write_text(render(with_layers(message))[1].replace("</body>", PROBE + "</body>"), "utf-8")
        found[name] = path
    return found


def seen(page: Path, width: int, *arguments: str) -> dict:
    dom = browser(page.parent, f"--window-size={width},900", *arguments, "--dump-dom", page.as_uri())
    return json.loads(re.search(r"<title>(\{.*?\})</title>", dom)[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.mark.parametrize(("name", "width"), [("calm", 1200), ("hostile", 1200), ("hostile", 500)])
def test_it_fits_and_loads_nothing(pages, name, width):
    told = seen(pages[name], width)
    assert (told["fits"], told["width"]) == (True, width)
    assert (told["resources"], told["scripts"]) == (0, 1)  # the script is the probe
    if width == 1200 and name == "calm":
        assert told["scrolling"] == []


@pytest.mark.parametrize("dark", [False, True])
def test_it_can_be_read_and_walked_by_keyboard(pages, dark):
    """Blink's preferredColorScheme: 0 is dark, 1 is light."""
    # On a busy machine the window sometimes has no focus yet, and nothing in it then looks focused.
    tries = (seen(pages["calm"], 1200, f"--blink-settings=preferredColorScheme={int(not dark)}") for _ in range(5))
    told = next((one for one in tries if one["active"]), None)
    assert told is not None, "no window was active"
    assert told["ground"] == ("rgb(20, 23, 27)" if dark else "rgb(250, 250, 248)")
    assert told["contrast"][0] >= 4.5, told["contrast"]
    assert told["focused"] == told["tabs"] > 20 and told["positive"] == told["named"] == 0
    assert told["outline"] == "solid" and told["small"] == 0


def test_a_faint_colour_would_be_seen(pages, tmp_path):
    faint = tmp_path / "faint.html"
    faint.write_text(pages["calm"].read_text("utf-8").replace("--muted: #5c6570", "--muted: #b8bcc0"), "utf-8")
    assert seen(faint, 1200, "--blink-settings=preferredColorScheme=1")["contrast"][0] < 4.5


def test_it_prints_to_three_pages_at_most(pages, tmp_path):
    pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed (extra: test)")
    paper = tmp_path / "design.pdf"
    browser(tmp_path, f"--print-to-pdf={paper}", "--no-pdf-header-footer", pages["calm"].as_uri())
    read = pypdf.PdfReader(paper)
    words = " ".join(page.extract_text() for page in read.pages)
    assert 1 <= len(read.pages) <= 3
    assert "Decisions asked" in words and "Risky mechanisms" in words


@pytest.mark.parametrize("dark", [False, True])
def test_screenshots(pages, tmp_path, dark):
    """Pictures of the page, for a person; here they only have to be of it: mostly ground, and some ink."""
    image = pytest.importorskip("PIL.Image")
    file = tmp_path / f"design-{'dark' if dark else 'light'}.png"
    browser(tmp_path, "--window-size=1200,1600", f"--blink-settings=preferredColorScheme={int(not dark)}",
            f"--screenshot={file}", pages["calm"].as_uri())  # fmt: skip
    with image.open(file) as picture:
        assert picture.size == (1200, 1600)
        grey = picture.convert("L").histogram()
    light, total = sum(grey[128:]), 1200 * 1600
    assert (light / total > 0.9) != dark and 0.003 < min(light, total - light) / total < 0.1
