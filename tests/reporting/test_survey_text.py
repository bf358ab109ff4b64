"""What the runs say, in the terminal: every width, every kind of run, nothing lost."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from turnaround.analysis.configurations import Spread
from turnaround.analysis.stable import EpochEstimate
from turnaround.analysis.workloads import LeftOut, RecordGap, Survey, survey
from turnaround.errors import RunDirectoryError
from turnaround.findings import Evidence, Finding, find_all
from turnaround.record.importers.read import read_runs
from turnaround.record.importers.values import ImportOptions
from turnaround.record.importers.write import write_runs
from turnaround.reporting.charts import ASCII, BLOCKS, Glyphs
from turnaround.reporting.comparison_table import accuracy_text, spread_text, stable_text, target_text
from turnaround.reporting.survey_json import survey_payload
from turnaround.reporting.survey_text import Screen, evidence_text, short_findings, survey_lines
from turnaround.words import number

WIDTHS = (40, 60, 80, 120, 200)

# The form of the lab's table, with figures of our own.
TABLE = """name,dataset,gpu,workers,batch_per_worker,images_per_epoch,epochs,fine_tune,augment,job_time_s,epoch_time_s,\
epochs_to_stable,train_accuracy,val_accuracy
one,photos,T4,2,32,24000,30,false,true,6000,200,15,0.86,0.69
two,photos,T4,4,32,24000,30,false,true,2600,80,19,0.87,0.68
three,photos,V100,4,32,24000,30,false,true,2500,80,20,0.87,0.69
four,photos,V100,8,32,24000,30,false,true,1400,44,25,0.86,0.67
five,fruit,T4,1,32,,10,true,true,660,20,,,
six,fruit,T4,2,32,,10,true,true,320,11,,,0.95
"""

GOLDEN = """\
fruit, fine-tuned
─────────────────
2 configurations, one run each. The figures are imported: stated by others, not
measured here.

                                                                      validation
configuration  batch  s/epoch  speed-up  efficiency     job time        accuracy
1 T4              32       20  baseline    baseline       11 min               -
2 T4              64       11     1.82x        91 %   5 min 20 s          95.0 %

Runs: five = 1 T4; six = 2 T4.
Baseline of speed-up and efficiency: 1 T4.
Not known for any of these runs: images/s, stable epoch, training accuracy.

Seconds an epoch, shorter is better; │ is the ideal: twice the workers, half the
baseline's time.
1 T4  █████████████████████████████████████████████████████████  20 s
2 T4  ████████████████████████████│██▍                           11 s (ideal 10)
"""


def imported(folder: Path, table: str = TABLE, curves: str | None = None) -> Survey:
    """A survey of run directories that were really imported."""
    (folder / "runs.csv").write_text(table)
    if curves is not None:
        (folder / "curves.csv").write_text(curves)
    path = folder / "curves.csv" if curves is not None else None
    given = ImportOptions(
        workers=None,
        gpu=None,
        batch_per_worker=None,
        dataset=None,
        images_per_epoch=None,
        name=None,
        nodes=None,
    )
    write_runs(read_runs(folder / "runs.csv", curves=path, options=given, is_percent=False).runs, folder / "runs")
    return survey([folder / "runs"])


def curves_of(**plateaus: float) -> str:
    rows = [
        f"{name},{epoch},{plateau * (1 - math.exp(-epoch / 3)):.4f}"
        for name, plateau in plateaus.items()
        for epoch in range(1, 31)
    ]
    return "\n".join(["name,epoch,val_accuracy", *rows, ""])


def shown(of: Survey, findings: Sequence[Finding] = (), *, width: int = 80, glyphs: Glyphs = BLOCKS) -> list[str]:
    return [line.plain for line in survey_lines(of, findings, Screen(width=width, glyphs=glyphs))]


def words(lines: Sequence[str]) -> str:
    """Without line breaks and blanks: what must be there at any width."""
    return "".join("".join(lines).split())


def finding(**values: object) -> Finding:
    known = {
        "id": "x",
        "severity": "caution",
        "text": "Something is so.",
        "evidence": (Evidence(run="one", what="epoch time", value=200.0, unit="s"),),
        "advice": "Do something about it.",
        "job": "fruit, fine-tuned",
    }
    return Finding(**(known | values))  # type: ignore[arg-type]


def test_a_small_job_in_full(tmp_path: Path) -> None:
    small = "\n".join(line for line in TABLE.splitlines() if not line.endswith(("0.69", "0.68", "0.67"))) + "\n"
    lines = shown(imported(tmp_path, small))
    golden = [re.sub(r" {2,}", "  ", line) for line in GOLDEN.splitlines()]
    assert [re.sub(r" {2,}", "  ", line) for line in lines[: len(golden)]] == golden


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII], ids=["blocks", "ascii"])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(tmp_path: Path, width: int, glyphs: Glyphs) -> None:
    runs = imported(tmp_path, curves=curves_of(one=0.69, two=0.68))
    long = "A sentence that is long enough to need more than one line at eighty columns, as sentences mostly are."
    left_out = LeftOut(
        directory="runs/a folder/with a long name/" + 3 * "deeper/", error=RunDirectoryError("It is damaged.")
    )
    of = replace(
        runs, left_out=(left_out,), running=("five",), gaps=(RecordGap(run="six", file="epochs.jsonl", bad_lines=3),)
    )
    lines = shown(of, [finding(text=long)], width=width, glyphs=glyphs)
    assert [line for line in lines if cell_len(line) > width] == []
    text = words(lines)
    for cell in ("baseline", "2.50x", "125%", "545", "1h40min", "25(byeye)", "95.0%", "87.0%"):
        assert cell in text
    for part in (
        long,
        left_out.directory,
        str(left_out.error),
        "Do something about it.",
        "six: 3 lines of epochs.jsonl cannot be read and are left out.",
    ):
        assert words([part]) in text
    assert words(["Still going: five. It is shown as far as it has come."]) in text
    if glyphs is ASCII:
        assert "".join(lines).isascii()


def test_one_table_where_there_is_room_and_two_where_not(tmp_path: Path) -> None:
    runs = imported(tmp_path)
    count = {
        width: sum(line.startswith("configuration") for line in shown(runs, width=width)) for width in (60, 80, 120)
    }
    assert count == {60: 6, 80: 3, 120: 2}


def test_rows_have_the_figures_of_their_configuration(tmp_path: Path) -> None:
    rows = [" ".join(line.split()) for line in shown(imported(tmp_path), width=200)]
    assert "4 T4 128 80 300 2.50x 125 % 43 min 20 s 19 (by eye) 68.0 % 87.0 %" in rows
    assert "4 V100 128 80 300 baseline baseline 41 min 40 s 20 (by eye) 69.0 % 87.0 %" in rows
    assert "Baselines of speed-up and efficiency: 2 T4 and 4 V100." in rows


def test_what_a_heading_means_is_said_once_and_only_if_it_is_shown(tmp_path: Path) -> None:
    lines = shown(imported(tmp_path), width=200)
    meaning = lines[lines.index("What the columns mean") + 1 :]
    assert sum(line.startswith("efficiency: ") for line in lines) == 1
    assert words(['"by eye": as the imported table states it.']) in words(meaning)
    assert not any("80 %" in line or line.startswith(("runs: ", "epochs to")) for line in meaning)


def test_curves_on_one_scale(tmp_path: Path) -> None:
    lines = shown(imported(tmp_path, curves=curves_of(one=0.69, two=0.60)))
    title = next(
        number for number, line in enumerate(lines) if line.startswith("Validation accuracy from epoch 1 to 30")
    )
    first, second = lines[title + 1 : title + 3]
    assert re.fullmatch(r"2 T4  [▁▂▃▄▅▆▇█]{30}  last 69.0 %", first)
    assert first.count("█") > 15  # the plateau of the better one
    assert second.count("█") == 0
    assert second.rstrip().endswith("last 60.0 %")
    assert not lines[title + 3].strip()  # the other two have no curves


def test_long_curves_are_squeezed(tmp_path: Path) -> None:
    rows = [f"one,{epoch},{min(epoch / 1000, 0.9)}" for epoch in range(1, 1001)]
    runs = imported(tmp_path, curves="\n".join(["name,epoch,val_accuracy", *rows, ""]))
    lines = shown(runs, width=60)
    line = next(line for line in lines if line.endswith("last 90.0 %"))
    assert cell_len(line) <= 60
    assert line.count("█") >= 5


def test_eight_curves_at_most(tmp_path: Path) -> None:
    names = {f"run{workers}": 0.5 + workers / 100 for workers in range(1, 13)}
    head = "name,dataset,gpu,workers,batch_per_worker,epochs\n"
    table = head + "".join(f"{name},photos,T4,{workers},32,30\n" for workers, name in enumerate(names, 1))
    lines = shown(imported(tmp_path, table, curves_of(**names)))
    drawn = [line for line in lines if re.search(r"[▁▂▃▄▅▆▇█]{30}  last", line)]
    assert (len(drawn), drawn[0].split()[0], drawn[-1].split()[0]) == (8, "1", "12")
    assert "8 of 12 configurations are shown." in " ".join(lines)


def test_repeats_show_their_range(tmp_path: Path) -> None:
    table = TABLE + "again,photos,T4,2,32,24000,30,false,true,6100,210,17,0.85,0.71\n"
    rows = [" ".join(line.split()) for line in shown(imported(tmp_path, table), width=200)]
    row = next(row for row in rows if row.startswith("2 T4 64 2 "))
    assert "205 (200-210)" in row
    assert "70.0 % (69.0-71.0)" in row
    assert "5 runs of 4 configurations. The figures are imported: stated by others, not measured here." in rows
    assert any(row.startswith("Runs: again, one = 2 T4; two = 4 T4; ") for row in rows)


def test_findings_with_their_evidence_and_what_to_do(tmp_path: Path) -> None:
    problem = finding(severity="problem", text="It is wrong.", job="photos, frozen", advice="")
    lines = shown(imported(tmp_path), [problem, finding(evidence=())])
    start = lines.index("Findings: 1 problem, 1 caution")
    assert lines[start + 1 :] == [
        "",
        "problem (photos, frozen): It is wrong.",
        "  [epoch time: one 200 s]",
        "",
        "caution (fruit, fine-tuned): Something is so.",
        "  Next: Do something about it.",
    ]


def test_nothing_to_say(tmp_path: Path) -> None:
    assert shown(imported(tmp_path))[-1] == "Findings: none. Nothing in these runs asks for your attention."


def test_findings_in_short() -> None:
    lines = short_findings([finding(text=f"Fact {number}.") for number in range(7)], Screen(), most=5)
    assert [line.plain for line in lines] == [*(f"caution: Fact {number}." for number in range(5)), "and 2 more"]
    assert short_findings([], Screen(), most=5) == []


def test_evidence_by_figure() -> None:
    evidence = (
        Evidence(run="a", what="epoch time", value=81.0, unit="s"),
        Evidence(run="b", what="epoch time", value=80.04, unit="s"),
        Evidence(run="a", what="final validation accuracy", value=0.6888, unit="share"),
        Evidence(run="b", what="final validation accuracy", value=math.nan, unit="share"),
        Evidence(run="", what="optimizer", value="adam [x]"),
    )
    assert evidence_text(evidence) == (
        "epoch time: a 81 s, b 80.04 s; final validation accuracy: a 68.9 %, b -; optimizer: adam [x]"
    )


def test_names_cannot_write_on_the_screen(tmp_path: Path) -> None:
    runs = imported(tmp_path)
    evil = replace(
        runs,
        workloads=(replace(runs.workloads[0], name="a\x1b[2Jb"), *runs.workloads[1:]),
        left_out=(LeftOut(directory="x\udcff", error=RunDirectoryError("\x1b]0;title\x07")),),
        running=("r\r",),
    )
    text = "\n".join(shown(evil, [finding(text="t\x1b[31m", advice="a\x07", job="j\x1b")]))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\r" not in text
    text.encode("utf-8")


STABLE = EpochEstimate(
    status="stable", epoch=12.0, low=10.0, high=14.5, level=0.7, band=0.01, noise=0.01, method="smooth", repeats=1
)


@pytest.mark.parametrize(
    ("stable", "expected"),
    [
        (STABLE, "12 (10-14.5)"),
        (replace(STABLE, low=None, high=None), "12"),
        (replace(STABLE, high=None), "12 (10 or more)"),
        (replace(STABLE, method="stated", low=None, high=None), "12 (by eye)"),
        (replace(STABLE, status="not yet stable", high=None), "not yet stable (>= 12)"),
        (replace(STABLE, status="too short", epoch=None), "too few epochs"),
        (replace(STABLE, status="unknown", epoch=None), "-"),
    ],
)
def test_the_stable_epoch_in_a_cell(stable: EpochEstimate, expected: str) -> None:
    assert stable_text(stable) == expected


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        (None, "-"),
        (replace(STABLE, status="reached"), "12 (10-14.5)"),
        (replace(STABLE, status="not reached", epoch=None), "not reached"),
        (replace(STABLE, status="unknown", epoch=None), "-"),
    ],
)
def test_the_common_target_in_a_cell(reached: EpochEstimate | None, expected: str) -> None:
    assert target_text(reached) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(209.0, "209"), (80.5, "80.5"), (1.2149, "1.21"), (0.0606, "0.0606"), (12345.6, "12,346"), (0.0, "0"), (5.0, "5")],
)
def test_numbers_have_three_digits(value: float, expected: str) -> None:
    assert number(value) == expected


def test_what_is_not_a_number_is_not_shown() -> None:
    nan = Spread(value=math.nan, low=math.nan, high=math.nan, sd=None, count=1)
    assert (number(math.nan), number(math.inf), spread_text(nan), accuracy_text(nan)) == ("-", "-", "-", "-")
    assert (spread_text(None), accuracy_text(None)) == ("-", "-")


def test_the_same_for_programs(tmp_path: Path) -> None:
    payload = survey_payload(imported(tmp_path), [finding()])
    assert list(payload) == ["runs", "jobs", "findings", "left_out", "running", "notes", "estimates"]
    assert [run["name"] for run in payload["runs"]] == ["five", "six", "one", "two", "three", "four"]
    assert list(payload["findings"][0]) == ["id", "severity", "text", "evidence", "next", "job"]
    _, photos = payload["jobs"]
    configuration = photos["cases"][1]
    assert (configuration["configuration"]["label"], configuration["runs"]) == ("4 T4", ["two"])
    assert configuration["epoch_time_s"]["value"] == 80.0
    assert configuration["speedup"]["baseline"] == "2 T4"
    assert configuration["speedup"]["speedup"]["value"] == pytest.approx(2.5)


@pytest.mark.photos
@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_the_lab(tmp_path: Path, samples: Path, width: int) -> None:
    runs = imported(tmp_path, (samples / "lab" / "runs.csv").read_text())
    lines = shown(runs, find_all(runs), width=width)
    assert [line for line in lines if cell_len(line) > width] == []
    text = words(lines)
    for cell in ("2.58x", "129%", "306", "1h38min", "25(byeye)", "68.9%", "87.1%", "model6"):
        assert cell in text
