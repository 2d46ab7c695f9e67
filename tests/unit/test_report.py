"""The report of a run: says what the figures say, holds everything, runs nothing from names, looks the same twice."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from stemdl.report import (
    CrystalCounts,
    FieldRecord,
    ReportData,
    ReportError,
    ShownField,
    TrainingCurve,
    render,
    save_result_picture,
    write_report,
)
from stemdl.report.field_panels import chosen_positions, detector_extent, shared_scale
from stemdl.report.run_panels import spoken_time
from stemdl.report.style import round_length, thinned
from stemdl.report.words import headline, number, percent, rank_name

EVIL = '<script>alert("x")</script> & $material$'
VOID = {"meta", "link", "br", "img", "hr", "input"}


def record(number: int, r: float = 0.97, **changes: Any) -> FieldRecord:
    quality = {
        "pearson_r": r, "nrmse": 0.3, "ssim": 0.9, "frc_half_angstrom": 1.1, "mean_inner_potential_error_v": -0.2,
    }  # fmt: skip
    values: dict[str, Any] = {
        "field": number,
        "material": f"material {number}",
        "formula": f"X{number // 2}",
        "quality": quality,
        "baselines": {"back-projection": quality | {"pearson_r": 0.9, "nrmse": 0.5}},
        "thickness_angstrom": 20.0,
        "zone_axis": (0, 1, -1),
    }
    return FieldRecord(**(values | changes))


def shown_field(of: FieldRecord, **changes: Any) -> ShownField:
    rng = np.random.default_rng(np.random.SeedSequence([of.field]))
    truth = rng.uniform(0, 900, (16, 20))
    values: dict[str, Any] = {
        "record": of,
        "amplitude": rng.uniform(0, 0.1, (3, 4, 12, 12)).astype(np.float16),
        "truth": truth,
        "prediction": truth * 0.9,
        "baselines": {"back-projection": truth * 0.5},
        "pixel_angstrom": 0.5,
        "dk_per_angstrom": 1 / 24,
        "wavelength_angstrom": 0.037,
    }
    return ShownField(**(values | changes))


def curve(name: str) -> TrainingCurve:
    steps, tried = np.arange(0, 100, 10.0), np.arange(0, 100, 50.0)
    return TrainingCurve(
        name, steps, np.exp(-steps / 50), 1e-3 * (100 - steps), tried, np.exp(-tried / 60), tried / 100
    )


def report_data(**changes: Any) -> ReportData:
    records = tuple(record(i, r=0.99 - 0.01 * i) for i in range(6))
    values: dict[str, Any] = {
        "run_name": "quickstart",
        "config_yaml": "run:\n  seed: 2019\n",
        "versions": {"torch": "2.13.0"},
        "records": records,
        "shown": (shown_field(records[0]), shown_field(records[5], uncertainty=np.full((16, 20), 10.0))),
        "curves": (curve("stage 1"), curve("stage 2")),
        "seconds": {"simulate": 100.0, "train": 300.0},
        "metrics": {"unseen": {"fields": 6}},
        "crystals": CrystalCounts(train=100, held_out=3, refused={"bad.cif": "no atoms"}),
        "target_blur_sigma_angstrom": 0.35,
    }
    return ReportData(**(values | changes))


class Page(HTMLParser):
    """Elements and ids of a page, and whether every element is closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def text() -> str:
    return render(report_data())


def test_the_page_lies_in_the_runs_folder_and_is_whole(tmp_path: Path, text: str) -> None:
    path = write_report(tmp_path, report_data())
    assert path == tmp_path / "report" / "index.html"
    assert [entry.name for entry in path.parent.iterdir()] == ["index.html"]
    assert path.read_text("utf-8") == text  # and twice the same bytes
    page = Page(text)
    assert page.tags["title"] == page.tags["h1"] == page.tags["main"] == 1
    assert len(text) < 1_000_000


def test_nothing_is_fetched_from_outside(text: str) -> None:
    for _, name, value in Page(text).attributes:
        if name in {"href", "src", "xlink:href", "action", "data"}:
            assert value.startswith(("#", "data:image/png;base64,")), (name, value[:80])
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert "default-src 'none'" in text


def test_every_id_is_unique_and_every_reference_has_a_target(text: str) -> None:
    attributes = Page(text).attributes
    ids = Counter(value for _, name, value in attributes if name == "id")
    assert [name for name, count in ids.items() if count > 1] == []
    targets = {value[1:] for _, name, value in attributes if name == "href" and value.startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]*)\)", text))
    assert targets <= set(ids)


def test_every_picture_is_sound_and_described(text: str) -> None:
    pictures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    # 7 and 8 panels of the two fields, two by material, three curves, one of the time
    assert len(pictures) == 7 + 8 + 2 + 3 + 1
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.attrib["role"] == "img"
        assert len(root.attrib["aria-label"]) > 15
        assert "#0a0b0c" not in picture
        assert "currentColor" in picture


def test_names_from_files_are_text_and_never_markup() -> None:
    evil = record(0, material=EVIL, formula=EVIL)
    data = report_data(
        run_name=EVIL, config_yaml=EVIL, versions={EVIL: EVIL}, records=(evil,), shown=(shown_field(evil),),
        metrics={EVIL: EVIL}, crystals=CrystalCounts(1, 1, {EVIL: EVIL}), seconds={EVIL: 1.0},
        curves=(curve(EVIL), curve("b")),
    )  # fmt: skip
    text = render(data)
    page = Page(text)
    assert page.tags["script"] == 1  # our own
    assert "<script>alert" not in text
    assert EVIL in page.text  # shown as it was written


def test_the_headline_says_what_the_figures_say() -> None:
    records = tuple(record(i, r=r) for i, r in enumerate((0.99, 0.98, 0.85, 0.95)))
    data = report_data(records=records, shown=(shown_field(records[2]),))
    words = re.sub(r"<[^>]*>", "", headline(data))
    assert "On 4 fields of 2 materials the network has never seen" in words
    assert "median Pearson r 0.965, median NRMSE 0.300" in words
    assert "than back-projection on 75 % of the fields" in words
    assert "The worst field is material 2 (X1), with r 0.850" in words
    assert 'href="#field-2"' in headline(data)


def test_the_worst_field_is_named_also_where_it_is_not_drawn() -> None:
    words = headline(report_data(shown=()))
    assert "material 5" in words
    assert "href" not in words


def test_the_table_lists_every_field_worst_first(text: str) -> None:
    table = text[text.index('<table class="sortable">') :]
    rows = re.findall(r"<tr><td.*?</tr>", table[: table.index("</table>")], flags=re.DOTALL)
    values = [[float(value) for value in re.findall(r'data-v="([^"]*)"', row)] for row in rows]
    assert [row[0] for row in values] == [5, 4, 3, 2, 1, 0]
    assert values[0][1:] == pytest.approx([20.0, 0.94, 0.3, 0.9, 1.1, -0.2, 0.9, 0.5])
    assert "[0 1 −1]" in rows[0]


def test_a_run_without_curves_times_baselines_and_drawn_fields_still_has_a_report() -> None:
    bare = FieldRecord(3, "gold", "Au", {"pearson_r": 0.5, "nrmse": 1.0})
    text = render(report_data(records=(bare,), shown=(), curves=(), seconds={}, crystals=CrystalCounts(1, 1)))
    Page(text)
    assert "No field was drawn" in text
    assert "better, in both" not in text


def test_many_materials_are_thinned_and_it_is_said() -> None:
    records = tuple(record(i, r=0.9, formula=f"M{i}") for i in range(70))
    assert "60 of 70 materials" in render(report_data(records=records, shown=(), curves=(), seconds={}))


def test_parts_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(ReportError, match="at least one"):
        report_data(records=())
    with pytest.raises(ReportError, match=r"numbered twice: \[1\]"):
        report_data(records=(record(1), record(1)), shown=())
    with pytest.raises(ReportError, match="field 2 has baselines"):
        report_data(records=(record(1), record(2, baselines={})), shown=())
    with pytest.raises(ReportError, match=r"shown fields \[9\]"):
        report_data(shown=(shown_field(record(9)),))
    with pytest.raises(ReportError, match=r"field 1 .*no 'nrmse'"):
        record(1, quality={"pearson_r": 1.0})
    with pytest.raises(ReportError, match="not finite"):
        record(1, quality={"pearson_r": np.nan, "nrmse": 1.0})
    with pytest.raises(ReportError, match=r"prediction has shape \(3, 3\)"):
        shown_field(record(1), prediction=np.zeros((3, 3)))
    with pytest.raises(ReportError, match="truth holds values"):
        shown_field(record(1), truth=np.full((16, 20), np.nan))
    with pytest.raises(ReportError, match="amplitude has shape"):
        shown_field(record(1), amplitude=np.zeros((3, 3)))
    with pytest.raises(ReportError, match=r"curve 'a': lr has shape \(3,\)"):
        dataclasses.replace(curve("a"), lr=np.zeros(3))


def test_the_detectors_middle_pixel_is_at_zero_angle() -> None:
    for count in (48, 49):
        left, right, bottom, top = detector_extent(count, count, 2.0)
        assert left + (count // 2 + 0.5) * 2.0 == 0
        assert top + (count // 2 + 0.5) * 2.0 == 0
        assert right - left == bottom - top == 2.0 * count


def test_the_shared_scale_is_that_of_the_truth_and_starts_at_zero() -> None:
    field = shown_field(record(1), truth=np.linspace(5, 700, 320).reshape(16, 20))
    assert shared_scale(field) == (0.0, 700.0)


def test_small_helpers_of_the_figures() -> None:
    assert chosen_positions(8) == [0, 4, 7]
    assert chosen_positions(1) == [0]
    assert round_length(5.4) == 5
    assert round_length(0.19) == pytest.approx(0.1)
    picture = np.arange(64.0).reshape(8, 8)
    np.testing.assert_allclose(thinned(picture, 4)[0, 0], picture[:2, :2].mean())
    assert thinned(picture, 3).shape == (2, 2)
    assert thinned(picture, 8).tolist() == picture.tolist()


def test_numbers_in_words() -> None:
    assert number(-0.001, "mean_inner_potential_error_v") == "0.00"
    assert number(-0.5, "mean_inner_potential_error_v") == "−0.50"
    assert [percent(share) for share in (1.0, 0.999, 0.97, 0.001, 0.0)] == [
        "100 %", "more than 99 %", "97 %", "less than 1 %", "0 %",
    ]  # fmt: skip
    assert [spoken_time(seconds) for seconds in (4.21, 59.7, 571, 7500)] == [
        "4.2 s", "1 min 0 s", "9 min 31 s", "2 h 5 min",
    ]  # fmt: skip
    fields = [record(i, r=0.9 - 0.1 * i) for i in range(3)]
    assert [rank_name(field, fields) for field in fields] == ["best of 3", "rank 2 of 3", "worst of 3"]


def test_the_picture_is_a_png_and_leaves_no_trace_in_matplotlib(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    path = tmp_path / "result.png"
    fields = [shown_field(record(i)) for i in range(2)]
    save_result_picture(path, fields)
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG\r\n")
    save_result_picture(path, fields)
    assert path.read_bytes() == first
    assert dict(mpl.rcParams) == before
    with pytest.raises(ReportError, match="0 fields"):
        save_result_picture(path, [])
    assert path.read_bytes() == first
