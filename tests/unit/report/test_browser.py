"""The page in a real browser: what the address says is what is open, keys work, themes hold."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from harness.report import render_html

from .sample_runs import prefetch, uva
from .sample_session import build_releases, build_sample

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=4000",
    "--dump-dom",
)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")

FACTS = """
<script>
const press = (key) => (document.activeElement || document.body).dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const here = () => (document.activeElement.dataset || {}).case || document.activeElement.id;
const facts = () => ({
  open: [...document.querySelectorAll("article.open")].map((a) => a.dataset.case),
  on: document.querySelectorAll("#grid a.cell:not(.off)").length,
  stops: document.querySelectorAll('#grid a.cell[tabindex="0"]').length,
  pressed: [...document.querySelectorAll('.pill[aria-pressed=true]')].map((p) => p.dataset.verdict),
  hash: location.hash, focus: here(), q: document.querySelector("#q").value,
  wide: document.documentElement.scrollWidth, room: innerWidth,
  past: history.length, theme: document.documentElement.dataset.theme || "auto"});
const tick = () => new Promise((done) => setTimeout(done, 30));
(async () => {
  const seen = [];
  const note = async () => { await tick(); seen.push(facts()); };
  await note();
  STEPS
  const out = document.createElement("pre");
  out.id = "facts";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
})();
</script></body>"""


@pytest.fixture(scope="module")
def html():
    models, offloads = ("tiny-llama",), (uva(1), prefetch(2, 1, 1), prefetch(2, 1, 3))
    return render_html(*build_sample(models=models, offloads=offloads).args)


def drive(tmp_path, html, hash_="", steps="", width=1400):
    """Open the page, run `steps` in it, and return what was seen before and after each note."""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    page = page.replace("</body>", FACTS.replace("STEPS", steps))
    return json.loads(unescape(dump(tmp_path, page, hash_, width).group(1)))


def dump(tmp_path, page, hash_, width, pattern=r'<pre id="facts">(.*?)</pre>'):
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--window-size={width},1200", f"--user-data-dir={tmp_path}/home"]
    done = subprocess.run(
        [*command, f"{path.as_uri()}{hash_}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(pattern, done.stdout, re.DOTALL)
    assert found, f"chromium gave rc={done.returncode}: {done.stderr[-800:]}"
    return found


def test_address_opens_its_cell_and_filters(tmp_path, html):
    seen = drive(tmp_path, html, "#v=FAIL&runner=v2&case=tiny-llama/v2-prefetch-g2n1s3-pin1-eager")[
        0
    ]
    assert seen["open"] == ["tiny-llama/v2-prefetch-g2n1s3-pin1-eager"]
    assert seen["pressed"] == ["FAIL"]
    assert seen["on"] == 1


def test_without_an_address_the_worst_cell_is_open(tmp_path, html):
    seen = drive(tmp_path, html)[0]
    assert seen["open"] == ["tiny-llama/v2-prefetch-g2n1s3-pin1-eager"]
    assert (seen["on"], seen["stops"], seen["hash"]) == (6, 1, "")


def test_damaged_addresses_are_harmless(tmp_path, html):
    seen = drive(tmp_path, html, "#v=&runner=%E0%A4%A&case=<img src=x>&nonsense")[0]
    assert len(seen["open"]) == 1


def test_search_pills_escape_and_back_button(tmp_path, html):
    steps = """
  press("/"); await note();
  document.querySelector("#q").value = "uva v2";
  document.querySelector("#q").dispatchEvent(new Event("input", {bubbles: true})); await note();
  press("Escape"); await note();
  document.querySelector(".pill.VACUOUS").click(); await note();
  document.querySelector("#grid a.cell.FAIL").click(); await note();
  history.back(); await tick(); await note();
"""
    start, slash, typed, cleared, pill, cell, back = drive(tmp_path, html, steps=steps)
    assert slash["focus"] == "q"
    assert (typed["on"], typed["hash"]) == (1, "#q=uva%20v2")
    assert typed["past"] == start["past"], "typing must not fill the history"
    assert (cleared["on"], cleared["q"]) == (start["on"], "")
    assert (pill["pressed"], pill["on"], pill["hash"]) == (["VACUOUS"], 2, "#v=VACUOUS")
    assert cell["open"] == ["tiny-llama/v2-prefetch-g2n1s3-pin1-eager"]
    assert cell["hash"] == "#v=VACUOUS&case=tiny-llama/v2-prefetch-g2n1s3-pin1-eager"
    assert (back["hash"], back["open"]) == (pill["hash"], pill["open"])


def test_arrows_move_in_the_grid_and_skip_what_is_filtered_out(tmp_path, html):
    steps = """
  const cells = document.querySelectorAll("#grid a.cell");
  cells[0].focus(); await note();
  press("ArrowRight"); await note();
  press("ArrowDown"); await note();
  press("Home"); await note();
  press("ArrowUp"); await note();
  location.hash = "#v=VACUOUS"; await tick();
  document.querySelector("#grid a.cell:not(.off)").focus();
  press("ArrowDown"); await note();
  press("ArrowLeft"); await note();
"""
    found = [s["focus"] for s in drive(tmp_path, html, steps=steps)[1:]]
    one, two = "uva-gb1-pin1-eager", "prefetch-g2n1s1-pin1-eager"
    expected = [
        f"v1-{one}",
        f"v2-{one}",
        f"v2-{two}",
        f"v1-{two}",
        f"v1-{one}",
        f"v2-{two}",
        f"v2-{two}",
    ]
    assert found == [f"tiny-llama/{name}" for name in expected]


def test_theme_button_goes_round(tmp_path, html):
    steps = 'const b = document.querySelector("#theme"); ' + "b.click(); await note(); " * 3
    assert [s["theme"] for s in drive(tmp_path, html, steps=steps)] == [
        "auto",
        "light",
        "dark",
        "auto",
    ]


@pytest.mark.parametrize("width", [500, 1400])
def test_page_never_scrolls_sideways(tmp_path, html, width):
    seen = drive(tmp_path, html, width=width)[0]
    assert seen["wide"] <= seen["room"]


@pytest.fixture(scope="module")
def releases():
    return render_html(*build_releases(modes=(True, False)).args)


@pytest.mark.parametrize("width", [500, 700, 1100, 1400])
def test_page_of_several_releases_never_scrolls_sideways(tmp_path, releases, width):
    seen = drive(tmp_path, releases, width=width)[0]
    assert seen["wide"] <= seen["room"]


def test_chip_of_the_release_grid_opens_its_cell_and_filters_hold(tmp_path, releases):
    steps = """
  document.querySelector(".releases a.cell.VACUOUS").click(); await note();
  press("ArrowRight"); await note();
  document.querySelector(".pill.FAIL").click(); await note();
  document.querySelector("select[name=release]").value = "0.32.0";
  document.querySelector("#filters").elements.release.dispatchEvent(
    new Event("change", {bubbles: true})); await note();
"""
    start, chip, _, fail, none = drive(tmp_path, releases, steps=steps)
    name = "random-llama-16/v2-uva-gb1-pin1-eager@vllm-0.26.0"
    assert chip["open"] == [name]
    assert chip["hash"] == f"#case={name}"
    assert (start["on"], fail["on"], none["on"]) == (50, 4, 0)


def test_script_runs_under_the_policy_it_carries(tmp_path, html):
    found = dump(tmp_path, html, "", 1400, r"<html[^>]*class=\"([^\"]*)\"")
    assert found.group(1) == "js"
    assert dump(tmp_path, html, "", 1400, r'<article class="card case open"')


def test_a_foreign_script_is_stopped_by_the_policy(tmp_path, html):
    page = html.replace("</body>", '<script>document.title = "broken in"</script></body>')
    title = dump(tmp_path, page, "", 1400, r"<title>(.*?)</title>").group(1)
    assert title != "broken in"
