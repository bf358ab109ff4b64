"""Text in lines no wider than the terminal."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from turnaround.reporting import text_layout
from turnaround.reporting.text_layout import Table, TextColumn, clean, tables, wrapped

SENTENCE = "The quick brown fox jumps over the lazy dog and looks at /a/very/long/path/that/has/no/blank/in/it."


@pytest.mark.parametrize("width", [20, 33, 60, 200])
def test_sentences_are_wrapped_and_nothing_is_lost(width: int) -> None:
    lines = wrapped(SENTENCE, width, first="Next: ", rest="  ")
    assert max(cell_len(line) for line in lines) <= width
    assert lines[0].startswith("Next: The quick")
    assert all(line.startswith("  ") for line in lines[1:])
    assert "".join("".join(lines).split()) == "Next:" + "".join(SENTENCE.split())


def test_letters_that_are_two_cells_wide() -> None:
    lines = wrapped("写真 " * 10 + "写" * 30, 21)
    assert max(cell_len(line) for line in lines) <= 21
    assert "".join(lines).count("写") == 40


def test_no_text_is_one_empty_line() -> None:
    assert wrapped("", 40) == [""]
    assert wrapped("", 40, first="Next: ") == ["Next:"]


def test_what_would_move_the_cursor_is_shown_as_a_question_mark() -> None:
    assert clean("a\x1b[31mb\rc\nd\u202ee\u2028f\udcffg") == "a?[31mb?c?d?e?f?g"
    assert clean("Äpfel, 写真, [brackets], 80 %") == "Äpfel, 写真, [brackets], 80 %"


NAMES = TextColumn(heading="configuration", cells=("2 T4", "16 V100 on 2 hosts"), is_left=True)
TIMES = [
    TextColumn(heading="s/epoch", cells=("209", "26.1")),
    TextColumn(heading="job time", cells=("1 h 38 min", "-")),
]
ACCURACIES = [TextColumn(heading="validation", cells=("68.9 %", "67.2 %"))]


def test_a_long_table_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    monkeypatch.setattr(text_layout, "cell_len", lambda text: (measured.append(text), cell_len(text))[1])
    cells = tuple(str(number) for number in range(500))
    tables(TextColumn(heading="run", cells=cells), [[TextColumn(heading="s", cells=cells)]], 80)
    assert len(measured) < 10 * len(cells)  # by the square of its rows, 20,000 runs took minutes


def test_one_table_where_everything_fits() -> None:
    assert tables(NAMES, [TIMES, ACCURACIES], 80) == [
        Table(
            ["configuration       s/epoch    job time  validation"],
            [
                "2 T4                    209  1 h 38 min      68.9 %",
                "16 V100 on 2 hosts     26.1           -      67.2 %",
            ],
        )
    ]


def test_a_table_for_each_group_where_it_does_not() -> None:
    first, second = tables(NAMES, [TIMES, ACCURACIES], 50)
    assert first.heading == ["configuration       s/epoch    job time"]
    assert second.heading == ["configuration       validation"]
    assert second.rows == ["2 T4                    68.9 %", "16 V100 on 2 hosts      67.2 %"]
    assert len(tables(NAMES, [TIMES, ACCURACIES], 30)) == 3


def test_names_that_leave_no_room_stand_on_their_own_lines() -> None:
    lines = [line for table in tables(NAMES, [TIMES, ACCURACIES], 20) for line in (*table.heading, *table.rows)]
    assert max(len(line) for line in lines) <= 20
    assert lines[:5] == [
        "s/epoch    job time",
        "2 T4",
        "    209  1 h 38 min",
        "16 V100 on 2 hosts",
        "   26.1           -",
    ]


def test_a_long_name_takes_several_lines() -> None:
    names = TextColumn(heading="configuration", cells=("2 T4", "4 T4, epochs 30, learning rate 0.001"), is_left=True)
    table, *_ = tables(names, [TIMES, ACCURACIES], 50)
    assert table.rows == [
        "2 T4                           209  1 h 38 min",
        "4 T4, epochs 30, learning     26.1           -",
        "  rate 0.001",
    ]


def test_headings_of_several_lines_stand_on_their_rows() -> None:
    tall = TextColumn(heading="validation\naccuracy", cells=("68.9 %", "67.2 %"))
    assert tables(NAMES, [[TIMES[0], tall]], 80)[0].heading == [
        "                             validation",
        "configuration       s/epoch    accuracy",
    ]


def test_a_number_stays_with_its_unit() -> None:
    assert wrapped("it takes 81 s an epoch", 11) == ["it takes", "81 s an", "epoch"]
    assert wrapped("it is 68.9 % here", 10) == ["it is", "68.9 %", "here"]


def test_groups_without_columns_are_no_tables() -> None:
    assert len(tables(NAMES, [[], ACCURACIES], 25)) == 1
