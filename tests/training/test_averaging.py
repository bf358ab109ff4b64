"""The moving average of the weights: its rule, what it leaves alone, and that runs with it are the same everywhere."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from forking import ForkingLauncher
from running import EXACT, host_never_waits, largest_difference, request, traced, train, weights
from training.test_step import at, batch, made, network
from turnaround.errors import ProcessFailedError
from turnaround.launch import lifecycle
from turnaround.record.layout import CheckpointFiles
from turnaround.record.reader import Run
from turnaround.training import checkpoint
from turnaround.training.averages import EvaluatedWeights, WeightAverage
from turnaround.training.schedule import choose_scaling
from turnaround.training.step import Step
from turnaround.use.trained import load_trained
from turnaround.workers.single import Single

DECAY = 0.9
# At 0.02 four processes agreed to 1e-12 on one kind of processor and not on another: AdamW divides gradients near zero
# by their own size, so a large rate multiplies their rounding errors.
SETTINGS = (*EXACT, "training.epochs=3", "training.learning_rate=0.003", f"training.ema={DECAY}")
pytestmark = pytest.mark.usefixtures("one_thread")


def averaging(step: Step, **keys: float) -> Step:
    net = step.components.network
    average = WeightAverage(net.module, network=net.module, **{"decay": DECAY, **keys})  # type: ignore[arg-type]
    step.components = dataclasses.replace(step.components, evaluated=EvaluatedWeights(net.module, average))
    return step


def state(module: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


@pytest.mark.parametrize("power", [1, 4])
def test_it_is_the_recursion_of_its_definition(power: int) -> None:
    step = averaging(made(network(norm=True)), power=power)
    module, average = step.components.network.module, step.components.evaluated.average
    assert average is not None
    wanted = state(module)
    for number in range(30):
        step(batch(), at(number), learning_rate=0.1)
        keeps = min(DECAY, (1 + power * number) / (10 + power * number)) ** power
        wanted = {
            k: keeps * wanted[k] + (1 - keeps) * v if v.is_floating_point() else v for k, v in state(module).items()
        }
    found = average.tensors()
    assert found.keys() == {k for k, v in wanted.items() if v.is_floating_point()}
    assert {"norm.running_mean", "norm.running_var"} < found.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-12, atol=1e-14)
    assert largest_difference(state(module), {**wanted, **found}) > 1e-4  # the raw weights are elsewhere


def test_as_many_images_whatever_the_workers() -> None:
    recipe = made(network()).components.recipe
    eight = choose_scaling(
        dataclasses.replace(recipe, optimizer="adamw", learning_rate=0.1), workers=8
    ).value.norm_power
    alone, together = (
        WeightAverage(nn.Linear(1, 1), network=nn.Linear(1, 1), decay=0.999, power=k) for k in (1, eight)
    )
    late = 10**6
    assert together.decay_at(late) == pytest.approx(alone.decay_at(8 * late) ** 8)
    assert together.decay_at(late) == pytest.approx(0.999**8)
    fixed = choose_scaling(
        dataclasses.replace(recipe, optimizer="adamw", learning_rate=0.1, batch_total=256), workers=8
    ).value
    assert fixed.norm_power == 1  # as many updates as one worker: the same decay


def test_the_random_weights_of_the_beginning_are_soon_forgotten() -> None:
    average = WeightAverage(nn.Linear(1, 1), network=nn.Linear(1, 1), decay=0.9999)
    left = torch.tensor([average.decay_at(step) for step in range(20)], dtype=torch.float64).prod()
    assert float(left) < 1e-6  # without the warm-up of the decay: 0.998


def test_it_is_put_in_place_and_taken_out_by_value() -> None:
    step = averaging(made(network(norm=True)))
    module, average = step.components.network.module, step.components.evaluated.average
    assert average is not None
    step(batch(), at(0), learning_rate=0.1)
    raw, addresses = state(module), [t.data_ptr() for t in module.state_dict().values()]
    with average.in_place():
        inside = state(module)
        assert [t.data_ptr() for t in module.state_dict().values()] == addresses
    assert all(torch.equal(inside[k], v) for k, v in average.tensors().items())
    assert not torch.equal(inside["first.weight"], raw["first.weight"])
    with pytest.raises(RuntimeError), average.in_place():
        raise RuntimeError
    assert [t.data_ptr() for t in module.state_dict().values()] == addresses
    assert all(torch.equal(v, raw[k]) for k, v in state(module).items())


def test_of_a_frozen_network_the_last_layer_alone_is_averaged() -> None:
    net = network(norm=True)
    net.module.requires_grad_(False)
    net.module.head.requires_grad_(True)
    average = WeightAverage(net.module.head, network=net.module, decay=DECAY)  # type: ignore[arg-type]
    assert average.names == ["head.weight", "head.bias"]


def test_without_it_nothing_is_kept(
    whole: Run, few_fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    plain = train(few_fruit_folder, tmp_path / "run", *SETTINGS[:-1], launcher=forking)
    assert all(torch.equal(v, weights(plain)[k]) for k, v in weights(whole).items())  # training takes no notice of it
    newest, _ = checkpoint.newest_valid(plain.directory.checkpoint)
    assert newest is not None
    assert not CheckpointFiles(newest).average.exists()
    assert checkpoint.averages_of(newest) == {}
    assert plain.final != pytest.approx(whole.final) or plain.epochs[-1].val_loss != whole.epochs[-1].val_loss


def averages(run: Run) -> dict[str, Tensor]:
    newest, _ = checkpoint.newest_valid(run.directory.checkpoint)
    assert newest is not None
    return load_file(CheckpointFiles(newest).average)


@pytest.fixture(scope="module")
def whole(few_fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory, forking: ForkingLauncher) -> Run:
    return train(few_fruit_folder, tmp_path_factory.mktemp("whole") / "run", *SETTINGS, launcher=forking)


@pytest.mark.parametrize("processes", [2, 4])
def test_it_is_the_same_on_every_number_of_processes(
    processes: int, whole: Run, few_fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    several = train(few_fruit_folder, tmp_path / "run", *SETTINGS, processes=processes, launcher=forking)
    assert largest_difference(averages(whole), averages(several)) < 1e-12
    assert largest_difference(weights(whole), weights(several)) < 1e-12
    for one, other in zip(whole.epochs, several.epochs, strict=True):
        assert one.val_accuracy == other.val_accuracy
        assert one.val_loss == pytest.approx(other.val_loss, rel=1e-12)


def test_a_run_with_it_is_resumed_to_the_bit(
    whole: Run, few_fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        traced(patch, kill_after_epoch="2")
        with pytest.raises(ProcessFailedError):
            train(few_fruit_folder, tmp_path / "run", *SETTINGS, launcher=forking)
    resumed = lifecycle.resume(request(tmp_path / "run", launcher=forking))
    assert all(torch.equal(v, averages(resumed)[k]) for k, v in averages(whole).items())
    assert [e.val_loss for e in resumed.epochs] == [e.val_loss for e in whole.epochs]


def test_what_was_evaluated_is_what_is_used(whole: Run) -> None:
    trained = load_trained(whole.path, weights="last")
    used = dict(trained.module.state_dict())
    assert all(torch.equal(used[k], v.to(used[k].dtype)) for k, v in averages(whole).items())


def test_a_damaged_average_is_a_damaged_checkpoint(whole: Run, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole.directory.checkpoint, tmp_path / "checkpoint"))
    file = CheckpointFiles(folder / "epoch-00003").average
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    found, passed_over = checkpoint.newest_valid(folder)
    assert found == folder / "epoch-00002"
    assert "average.safetensors has another SHA-256" in passed_over[0]


def test_a_frozen_run_averages_its_last_layer(
    whole: Run, few_fruit_folder: Path, tmp_path: Path, forking: ForkingLauncher
) -> None:
    file = CheckpointFiles(whole.directory.checkpoint / "epoch-00003").weights
    frozen = (*SETTINGS, f"model.weights={file}", "model.fine_tune=false")
    run = train(few_fruit_folder, tmp_path / "run", *frozen, launcher=forking)
    assert averages(run).keys() == {"head.weight", "head.bias"}
    assert not torch.equal(averages(run)["head.weight"], weights(run)["head.weight"])
    used = load_trained(run.path, weights="last").module.state_dict()
    assert torch.equal(used["head.weight"], averages(run)["head.weight"].to(used["head.weight"].dtype))


@pytest.mark.gpu
def test_on_a_gpu_the_host_never_waits_for_it() -> None:
    cuda = torch.device("cuda", 0)
    net = network(cuda, torch.float32, norm=True)
    step = averaging(made(net, Single(count=4, device=cuda), precision="fp32"))
    given = batch(device=cuda)
    step(given, at(0), learning_rate=0.1)
    torch.cuda.synchronize()
    with host_never_waits():
        step(given, at(1), learning_rate=0.1)
