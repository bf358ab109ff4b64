"""The words of an estimate from zero runs: the answer first, and whom it is about."""

from __future__ import annotations

from dataclasses import replace

from forecast.test_estimate import HERE, asked
from turnaround.findings.estimates import choice_sentences, memory_sentences, trial_sentences
from turnaround.forecast.estimate import TrialFacts, choices, estimate_all
from turnaround.forecast.interval import Interval

QUICK = replace(HERE, num_train=320, num_validation=80, epochs=5, start_up_s=1.0)
"""A job of which a GPU would do little but start."""


def answer(trial: TrialFacts, *gpus: str, workers: tuple[int, ...] = (1, 2, 4)) -> str:
    estimates = estimate_all(trial, asked(*gpus, workers=workers))
    return " ".join(choice_sentences(choices(estimates), estimates, trial, currency=None))


def test_the_fastest_is_one_of_the_gpus_asked_for() -> None:
    said = answer(HERE, "cpu", "t4", "h100")
    assert said.startswith("Fastest to a stable accuracy of the GPUs asked for: 4 H100, ")
    assert "This machine" not in said  # whose processors would take hours
    own = replace(HERE, device="H200", precision="bf16", images_per_s=Interval.exact(4700.0))
    assert answer(own, "h200", "t4").startswith(
        "Fastest to a stable accuracy of the GPUs asked for and of this machine's: 4 H200, "
    )


def test_a_machine_that_is_as_fast_is_not_left_out() -> None:
    quick = replace(QUICK, images_per_s=Interval.exact(5000.0))
    said = answer(quick, "cpu", "t4", workers=(1,))
    assert "of the GPUs asked for: 1 T4, " in said
    assert " This machine is as fast or faster: 1 CPU process, " in said
    slower = replace(QUICK, images_per_s=Interval.exact(50.0))
    assert " This machine may be as fast, without a GPU: 1 CPU process, " in answer(slower, "cpu", "t4", workers=(1,))
    assert "This machine" not in answer(QUICK, "cpu", "t4", workers=(1,))
    assert "This machine" not in answer(replace(quick, trial_batch=16), "cpu", "t4", workers=(1,))  # of fewer images
    assert answer(quick, "cpu", workers=(1,)).startswith("Fastest to a stable accuracy: 1 CPU process, ")


def test_where_no_gpu_has_the_memory_that_comes_first_with_the_batch_that_fits() -> None:
    large = replace(HERE, batch=4096, num_train=10**6)
    said = answer(large, "cpu", "t4", "a100", workers=(1,))
    assert said.startswith("No GPU asked for (T4 and A100) has the memory for a step of 4,096 images: it needs 178 GB")
    assert said.endswith("Ask again with --batch 256, which surely fits on A100 (128 on T4).")
    assert "CPU" not in said
    huge = replace(large, network=replace(HERE.network, activation_bytes_per_image=1e12))
    assert answer(huge, "t4", workers=(1,)).endswith(
        "Not even one image surely fits: take smaller images (--size) or a smaller network."
    )


def test_of_a_backbone_whose_features_are_kept_both_rates_are_told() -> None:
    """12,969 images/s on two cores were those of the last layer."""
    network = replace(HERE.network, is_frozen=True, keeps_features=True)
    rates = {"images_per_s": Interval.exact(13_000.0), "backbone_images_per_s": Interval.exact(109.0)}
    (said, *_) = trial_sentences(replace(HERE, network=network, **rates))
    assert said.startswith(
        "measured here (CPU): 109 images/s of the backbone's one pass, then 13,000 images/s of training the last layer "
        "on its features with 32 images a step; "
    )


# --- memory


def memory(trial: TrialFacts, *gpus: str) -> list[str]:
    return list(memory_sentences(estimate_all(trial, asked("cpu", *gpus, workers=(1,))), trial))


def test_what_a_step_needs_is_said_where_it_fits_too() -> None:
    assert memory(HERE, "t4", "a100", "a100-80gb") == [
        "memory: a step of 32 images needs 2.9 to 4.2 GB: surely fits on all of them; the most images that surely fit: "
        "128 on T4, 256 on A100, 512 on A100-80GB"
    ]
    assert memory(HERE) == []  # of a processor's memory nothing is known


def test_what_does_not_fit_is_named() -> None:
    said = memory(replace(HERE, batch=300), "t4", "a100", "h100")
    assert said[0].startswith("memory: a step of 300 images needs 14 to 27 GB: surely fits on A100 and H100; the most")
    assert said[1:] == ["a step of 300 images may not fit on T4"]
    assert memory(replace(HERE, batch=600), "t4", "l4")[1:] == ["a step of 600 images does not fit on T4 and L4"]


def test_a_trial_of_fewer_images_says_so() -> None:
    small = replace(HERE, batch=512, trial_batch=128)
    assert memory(small, "a100")[-1] == "CPU: a step of 512 images does not fit here; 128 images do"
    (said, *_) = trial_sentences(small)
    assert "5 images/s of training with 128 images a step (the 512 asked about do not fit into this machine's" in said
    cpu, gpu = estimate_all(small, asked("cpu", "a100", workers=(1,)))
    assert (cpu.memory.fits, cpu.memory.largest_batch) == ("no", 128)
    assert gpu.memory == estimate_all(replace(HERE, batch=512), asked("a100", workers=(1,)))[0].memory
    assert answer(small, "cpu", workers=(1,)) == (
        "This machine has not the memory for a step of 512 images: ask again with --batch 128."
    )
