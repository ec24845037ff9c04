"""Text and its ground keep a contrast of 4.5 to 1 (WCAG AA) in both themes."""

import re
from importlib.resources import files

import pytest

CSS = files("harness.report").joinpath("assets", "report.css").read_text(encoding="utf-8")
COLORS = {
    name: {"light": light, "dark": dark}
    for name, light, dark in re.findall(
        r"--(\w+):light-dark\((#[0-9a-f]{3,6}),(#[0-9a-f]{3,6})\)", CSS
    )
}
VERDICTS = ("pass", "fail", "vac", "uns", "err")
PAIRS = [
    *((ink, ground) for ink in ("ink", "soft", "link") for ground in ("bg", "card", "sunk", "hl")),
    *((verdict, ground) for verdict in VERDICTS for ground in ("bg", "card")),
    *(("on", verdict) for verdict in VERDICTS),
]


def channels(color):
    digits = color[1:]
    digits = "".join(d * 2 for d in digits) if len(digits) == 3 else digits
    return [int(digits[i : i + 2], 16) for i in (0, 2, 4)]


def luminance(rgb):
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def mixed(color, ground, share):
    return [share * a + (1 - share) * b for a, b in zip(color, ground, strict=True)]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("ink", "ground"), PAIRS)
def test_text_is_readable_on_its_ground(ink, ground, theme):
    assert contrast(channels(COLORS[ink][theme]), channels(COLORS[ground][theme])) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("name", "share"), [("pass", 0.16), ("fail", 0.15)])
def test_text_is_readable_on_its_own_tint(name, share, theme):
    color, card = channels(COLORS[name][theme]), channels(COLORS["card"][theme])
    assert (
        f"color-mix(in srgb,var(--{'c' if name == 'pass' else name}) {share:.0%},var(--card))"
        in CSS
    )
    assert contrast(color, mixed(color, card, share)) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_vacuous_stripes_carry_a_readable_mark(theme):
    assert "color-mix(in srgb,var(--c) 88%,light-dark(#fff,#000))" in CSS
    stripe = mixed(channels(COLORS["vac"][theme]), [255] * 3 if theme == "light" else [0] * 3, 0.88)
    assert contrast(channels(COLORS["on"][theme]), stripe) >= 4.5
