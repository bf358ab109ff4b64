"""Names of GPUs, their data sheets, and a user's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from turnaround.analysis.gpu_kinds import data_sheet, is_cuda, kind_of, known_kinds, own_kinds_file
from turnaround.errors import InputError


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path))
    return tmp_path


def write_own(text: str) -> None:
    own_kinds_file().write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Tesla T4", "T4"),
        ("NVIDIA Corporation TU104GL [Tesla T4] (rev a1)", "T4"),
        ("v100", "V100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("V100-32GB (DGX-2)", "V100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("a100", "A100"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3080 Ti", "RTX 3080 Ti"),
        ("GA102 [GeForce RTX 3090]", "RTX 3090"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("cpu", "CPU"),
        # Not the whole GPU, or one that nobody has described: itself, without its maker.
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100-SXM4-40GB MIG 1g.5gb"),
        ("NVIDIA GeForce RTX 4090 D", "RTX 4090 D"),
        ("NVIDIA T400 4GB", "T400 4GB"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_a_name_becomes_a_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_a_kind_is_a_name_of_itself() -> None:
    assert [kind_of(kind) for kind in known_kinds()] == known_kinds()


def test_what_the_data_sheets_say() -> None:
    t4, v100, h100 = data_sheet("T4"), data_sheet("Tesla V100-SXM2-32GB"), data_sheet("h100")
    assert t4 is not None
    assert v100 is not None
    assert h100 is not None
    assert (t4.bandwidth_gb_s, t4.memory_gb, t4.fp16_tflops, t4.tf32_tflops, t4.fp32_tflops) == (320, 16, 65, None, 8.1)
    assert (v100.name, v100.bandwidth_gb_s) == ("V100", 900)
    assert (t4.board_watts, v100.board_watts, h100.board_watts) == (70, 300, 700)
    assert (h100.fp16_tflops, h100.tf32_tflops, h100.source) == (
        989,
        495,
        "NVIDIA H100 Tensor Core GPU data sheet (SXM)",
    )
    assert data_sheet("Quadro K620") is None


@pytest.mark.parametrize("kind", known_kinds())
def test_every_sheet_is_whole_and_without_sparsity(kind: str) -> None:
    sheet = data_sheet(kind)
    assert sheet is not None
    assert sheet.source
    assert sheet.matches
    assert None not in (sheet.memory_gb, sheet.fp16_tflops, sheet.fp32_tflops)
    # Bytes for each floating-point operation have not changed tenfold in ten years; a figure with a slip would.
    assert 1 / 600 < sheet.bandwidth_gb_s / (1000 * (sheet.fp16_tflops or 0)) < 1 / 18
    if sheet.tf32_tflops is not None:
        assert sheet.fp16_tflops == pytest.approx(2 * sheet.tf32_tflops, rel=0.02)


def test_the_kinds_that_people_ask_for_are_there() -> None:
    wanted = {
        "T4",
        "L4",
        "V100",
        "P100",
        "A100",
        "A100-80GB",
        "A10",
        "H100",
        "H100-PCIe",
        "H200",
        "B200",
        "A6000",
        "L40S",
    }
    wanted |= {f"RTX {n}" for n in (3060, 3070, 3080, 3090, 4070, 4080, 4090, 5070, 5080, 5090)} | {"MI300X", "MI250X"}
    assert wanted - set(known_kinds()) == set()


def test_a_user_adds_and_overrides() -> None:
    write_own(
        '["RTX 4090 D"]\nbandwidth_gb_s = 1008\n[T4]\nbandwidth_gb_s = 239\n["Lab GPU"]\nbandwidth_gb_s = 500\n'
        'matches = ["quadro k"]\n'
    )
    own, t4 = data_sheet("NVIDIA GeForce RTX 4090 D"), data_sheet("Tesla T4")
    assert own is not None
    assert t4 is not None
    assert (own.name, own.bandwidth_gb_s, own.memory_gb, own.source) == ("RTX 4090 D", 1008, None, "given by the user")
    assert (t4.bandwidth_gb_s, t4.memory_gb, t4.source) == (239, 16, "given by the user")
    assert kind_of("Quadro K620") == "Lab GPU"
    assert {"RTX 4090 D", "Lab GPU", "V100"} <= set(known_kinds())


def test_without_a_folder_of_configuration_it_is_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNAROUND_CONFIG")
    assert own_kinds_file() == Path.home() / ".config" / "turnaround" / "gpus.toml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[T4", "cannot be read.*Correct it"),
        ("T4 = 3", "T4 = 3 is not a section.*Write"),
        ("[X]\nmemory_gb = 3", "no bandwidth_gb_s.*Add the memory bandwidth"),
        ("[X]\nbandwidth_gb_s = -3", "bandwidth_gb_s = -3.*above 0"),
        ('[X]\nbandwidth_gb_s = "3"', "bandwidth_gb_s = '3'.*above 0"),
        ("[X]\nbandwidth_gb_s = nan", "bandwidth_gb_s = nan.*above 0"),
        ("[X]\nbandwidth = 3", "unknown key 'bandwidth'.*Valid: bandwidth_gb_s"),
        ('[X]\nbandwidth_gb_s = 3\nmatches = ["("]', "matches.*Give a list of regular expressions"),
    ],
)
def test_a_bad_file_of_a_user_is_told(text: str, message: str) -> None:
    write_own(text)
    with pytest.raises(InputError, match=re.compile(message, re.DOTALL)) as caught:
        kind_of("T4")
    assert "gpus.toml" in str(caught.value)


def test_devices_of_records_that_are_gpus() -> None:
    assert [is_cuda(device) for device in ("cuda", "cuda:3", "cpu", "mps", None, 3)] == [True, True, *4 * [False]]


def test_a_board_draws_what_its_sheet_says_or_is_not_known() -> None:
    """An energy is told by it: a slip of a digit would be ten times the electricity."""
    watts = {kind: sheet.board_watts for kind in known_kinds() if (sheet := data_sheet(kind)) is not None}
    assert [kind for kind, each in watts.items() if each is None] == ["RTX 6000"]  # its sources have 260 and 295 W
    assert all(70 <= each <= 1000 for each in watts.values() if each is not None)
    write_own("[V100]\nboard_watts = 250\n")
    own = data_sheet("V100")
    assert own is not None
    assert (own.board_watts, own.memory_gb, own.source) == (250, 16, "given by the user")
