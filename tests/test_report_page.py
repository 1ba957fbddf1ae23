"""The page as a whole: sections, safety, size, links, determinism, errors, a browser."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from build.models import edit_json
from build.tables import write_text
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.statistics import Bootstrap
from compoclip.report.write import write_report
from report_study import EVIL, make_run, make_study

SECTIONS = (
    "summary", "changes", "grounded", "skills", "invariance", "tradeoff", "training", "examples",
    "details", "coverage", "provenance",
)  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    make_study(folder, photos=100, resamples=40)
    make_run(folder / "runs", "negclip", steps=20)
    make_run(folder / "runs", "fsc-clip", ("clip", "global_hn"), steps=30)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A study of two models on few photos, for what does not hang on how much there is."""
    folder = tmp_path_factory.mktemp("small")
    make_study(folder, photos=14, models=("base", "negclip"), resamples=20)
    make_run(folder / "runs", "negclip", steps=20)
    return folder


@pytest.fixture(scope="module")
def page(study) -> Path:
    runs = (study / "runs" / "negclip", study / "runs" / "fsc-clip")
    return write_report([study / "results"], study / "r.html", runs=runs, bootstrap=Bootstrap(50))


def text_of(out: Path, *results: Path, **options: Any) -> str:
    """The text of a page about some results."""
    return write_report(results, out, bootstrap=Bootstrap(20), **options).read_text("utf-8")


class Outline(html.parser.HTMLParser):
    """Ids, local links, images, tables, and what would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.sources: list[str] = []
        self.captions = self.tables = self.scripts = 0
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        if tag == "a":
            self.links.append(str(values.get("href")))
        if tag == "img":
            self.images.append(values)
        self.sources += [str(v) for k, v in attrs if k in ("src", "srcset", "data", "poster")]
        self.sources += [str(values["href"])] if tag == "link" else []
        self.tables += tag == "table"
        self.captions += tag == "caption"
        self.scripts += tag == "script"
        if tag not in ("meta", "link", "img", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_section_is_there_and_everything_resolves(page):
    text = page.read_text(encoding="utf-8")
    outline = Outline(text)
    assert not outline.open
    assert set(SECTIONS) <= set(outline.ids)
    assert len(outline.ids) == len(set(outline.ids))
    assert {link[0] for link in outline.links} == {"#"}
    assert {link[1:] for link in outline.links} <= set(outline.ids)
    assert outline.tables == outline.captions > 5
    assert outline.images
    assert all(image.get("alt") for image in outline.images)
    assert all(source.startswith("data:") for source in outline.sources)
    assert "http://" not in re.sub(r"data:[^\"]+", "", text)
    assert page.stat().st_size < 5_000_000
    assert '<h3>sugarcrepe</h3> <span class="flag">partial</span>' in text
    assert '<th scope="row">sugarcrepe <span class="flag">partial</span>' in text
    assert text.count("<td>100 of 106</td>") > 4
    for labelled in re.findall(r'aria-labelledby="([^"]+)"', text):
        assert labelled in outline.ids


def test_captions_are_text_and_photos_are_embedded_once(page):
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert Outline(text).scripts == 1
    assert "unsafe-inline'; script-src 'sha256-" in text
    assert EVIL not in text
    photos = re.findall(r'src="(data:image/(?:png|jpeg)[^"]+)"', text)
    assert photos
    assert len(photos) == len(set(photos))


def test_one_model_alone_gives_a_page_without_comparisons(small, tmp_path):
    text = text_of(tmp_path / "one.html", small / "results" / "negclip")
    assert "nothing to compare" in text
    assert "No runs were given" in text
    assert "Examples need at least two models" in text
    assert set(SECTIONS) <= set(Outline(text).ids)


def test_hostile_names_are_escaped_and_missing_photos_are_counted(small, tmp_path):
    folder = shutil.copytree(small / "results", tmp_path / "results")
    for path in (folder / "negclip").glob("*.json"):
        edit_json(path, lambda data: data.update(model="<b>$x$</b>\u0007"))
    photos, away = small / "photos", tmp_path / "away"
    photos.rename(away)
    try:
        text = text_of(tmp_path / "r.html", folder, title="</title><script>x</script>")
    finally:
        away.rename(photos)
    assert Outline(text).scripts == 1
    assert "<b>$x$" not in text
    assert re.search(r"\d+ photos could not be read", text)
    assert "photo not found or not readable" in text


def test_the_command_writes_the_bytes_of_the_function(small, tmp_path, capsys):
    out = tmp_path / "page.html"
    models, runs = [small / "results" / name for name in ("base", "negclip")], small / "runs"
    command = ["report", *map(str, models), f"--runs={runs / 'negclip'}", "-o", str(out)]
    assert main([*command, "--resamples=20", "--json"]) == 0
    about = {"report": str(out), "bytes": out.stat().st_size}
    assert json.loads(capsys.readouterr().out) == about
    text = text_of(tmp_path / "again.html", *models, runs=[runs / "negclip"])
    assert text == out.read_text("utf-8")
    assert "negclip" in text


def test_errors_are_one_line(small, tmp_path, capsys):
    results = str(small / "results")
    bad = write_text(tmp_path / "bad" / "x.json", "{").parent
    out = ["-o", str(tmp_path / "r.html"), "--resamples", "20"]
    for argv, code, said in (
        ([str(tmp_path / "none")], 1, "no such file or folder"),
        ([str(bad)], 1, "x.json: not "),
        ([results, "--base", "nobody"], 2, "--base nobody"),
        ([results, "--runs", str(tmp_path)], 1, "train.jsonl"),
        ([results, "--resamples", "0"], 2, "must lie between 1 and 100000"),
        ([results, "-o", str(tmp_path)], 2, "is a folder"),
    ):
        assert main(["report", *out, *argv]) == code
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert said in line
    assert not (tmp_path / "r.html").exists()


def test_contradictory_results_are_refused(small, tmp_path):
    copied = shutil.copytree(small / "results" / "base", tmp_path / "a" / "base")
    with pytest.raises(CompoclipError, match="base: two results for"):
        write_report([small / "results", tmp_path / "a"], tmp_path / "r.html")
    edit_json(copied / "sugarcrepe.json", lambda data: data["identity"].update(weights="other"))
    with pytest.raises(CompoclipError, match="2 different checkpoints"):
        write_report([tmp_path / "a"], tmp_path / "r.html")
    runs = [small / "runs" / "negclip"] * 2
    with pytest.raises(UsageError, match="two runs are called negclip"):
        write_report([small / "results"], tmp_path / "r.html", runs=runs, bootstrap=Bootstrap(20))


SORTED = """table => {
  const number = (text) => Number(text.trim().replace(/−/g, "-").replace(/,/g, "").split(/\\s/)[0]);
  const keys = (place) => [...table.tBodies].map((body) => {
    const cell = body.rows[0].cells[place];
    return cell.dataset.sort ?? cell.textContent;
  });
  return [...table.tHead.rows[0].cells].map((head, place) => {
    const good = [];
    for (const wanted of ["descending", "ascending"]) {
      head.querySelector("button").click();
      const sign = wanted === "ascending" ? 1 : -1;
      const found = keys(place).map(number);
      const numbers = found.every((value) => !Number.isNaN(value));
      good.push(head.getAttribute("aria-sort") === wanted);
      good.push(!numbers || found.every((v, k) => !k || sign * (v - found[k - 1]) >= 0));
    }
    return good.every(Boolean);
  });
}"""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_in_a_browser(browser, page, width, scheme):
    """Nothing logged, no image empty, no overflow, tables sorted by a click."""
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened.set_default_timeout(120_000)
    logged = []
    opened.on("console", lambda message: logged.append(message.text))
    opened.on("pageerror", lambda error: logged.append(str(error)))
    opened.on("request", lambda sent: sent.url[:5] in ("file:", "data:") or logged.append(sent.url))
    opened.goto(page.as_uri())
    assert opened.evaluate("document.documentElement.scrollHeight") <= 8000
    assert opened.locator(".finding").last.bounding_box()["y"] < 900
    assert opened.locator(".scene img").bounding_box()["y"] < (500 if width == 1280 else 1400)
    assert opened.locator(".scene .looks").count() == 0
    opened.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    opened.locator(".copy").first.click()
    head, rule, *lines = opened.evaluate("copied").strip().splitlines()
    assert head.startswith("| Measure | ●base | ■")
    assert re.fullmatch(r"\|---(\|---:)+\|", rule)
    assert re.match(r"\| Mean grounded gain \| [\d.]+ \[[\d.]+ to [\d.]+\] \|", lines[0])
    assert {line.count(" | ") for line in lines} == {head.count(" | ")}
    opened.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    cut = "[...document.querySelectorAll('.card')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
    assert opened.evaluate(f"{cut}.length") == 0
    images = opened.evaluate(
        "Promise.all([...document.images].map((i) => i.decode().then(() => i.naturalWidth)))"
    )
    assert len(images) > 10
    assert min(images) > 0
    assert opened.evaluate("[...document.images].every((i) => i.alt.length > 10)")
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if width == 1280:
        tables = opened.locator("table.sortable").all()
        assert len(tables) > 4
        for table in tables:
            assert all(table.evaluate(SORTED))
        toggle = opened.locator(".toggle").first
        hidden = opened.locator("tr.part[hidden]")
        before = hidden.count()
        toggle.click()
        assert hidden.count() < before
    shades = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (shades == "rgb(255, 255, 255)") == (scheme == "light")
    opened.close()
    assert logged == []


def test_printing_opens_what_is_folded(browser, page, tmp_path):
    opened = browser.new_page()
    opened.set_default_timeout(120_000)
    opened.goto(page.as_uri())
    assert opened.locator("details:not([open])").count() > 3
    opened.pdf(path=str(tmp_path / "r.pdf"))
    assert opened.locator("details:not([open])").count() == 0
    assert opened.locator("tr.part[hidden]").count() == 0
    assert (tmp_path / "r.pdf").stat().st_size > 20_000
    opened.close()
