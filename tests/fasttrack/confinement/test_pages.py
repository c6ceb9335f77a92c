"""Pages that show and do nothing, and every way of doing something."""

import pytest
from fasttrack.confinement.pages import check_page

HONEST = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>x</title><style>a { color: var(--ink) }</style></head>
<body><p>javascript: one = 1 &lt;script&gt; url(x) @import</p><a href="../evidence/x.json">x</a><a href="#top">y</a>
<svg viewBox="0 0 1 1" role="img" aria-labelledby="t"><title id="t">x</title><rect fill="var(--ink)" x="1"/></svg>
</body></html>
"""
EXPLOITS = [
    "<script>1</script>", "<SCRIPT src=x></SCRIPT>", "<p onclick='x()'>x</p>", "<svg onload=x()></svg>",
    "<a href='javascript:x()'>x</a>", "<a href='java&#115;cript:x()'>x</a>", "<a href='//x.org'>x</a>",
    "<a href='https://x.org'>x</a>", "<a href='/x'>x</a>", "<img src='https://x.org/y.png'>",
    "<img src='data:image/svg+xml;base64,AA=='>",
    "<style>@import 'x'</style>", "<style>a{background:url(//x.org)}</style>",
    "<style>\\75rl(x)</style>", "<p style='background:url(x)'>x</p>", "<iframe srcdoc='x'></iframe>", "<base href='x'>",
    "<meta http-equiv='refresh' content='0'>", "<form action='x'></form>", "<svg><foreignObject/></svg>",
    "<svg><use href='x'/></svg>", "<rect fill='url(//x.org)'/>", "<!-- x -->", "<![CDATA[x]]>", "<?xml x?>", "a <b x",
    "<object data='x'></object>", "<link rel='stylesheet' href='x'>", "<math><mtext></mtext></math>",
    "<!--><img src=x>",
    "<p><template><p></template>", "< script>", "<a ping='x' href='#'>x</a>", "<svg><animate/></svg>",
]  # fmt: skip


def test_an_honest_page_passes():
    assert list(check_page(HONEST)) == []


@pytest.mark.parametrize("exploit", EXPLOITS)
def test_what_runs_loads_or_leads_away_is_refused(exploit):
    assert list(check_page(HONEST.replace("</body>", f"{exploit}</body>")))
    assert list(check_page(f"<p>x</p>\n{exploit}\n"))[0][0] == 2


@pytest.mark.parametrize("unit", ["<!--", "<a ", "<a b='", "<![", "</", "<", "<a b=\"<a b='"])
def test_hostile_pages_are_read_in_time(unit):
    """Each would take hours if reading were quadratic."""
    assert list(check_page(unit * ((1 << 19) // len(unit))))
    assert list(check_page(unit * ((1 << 19) // len(unit)) + ">"))
