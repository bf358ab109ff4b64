"""One network of timm without the others is the network that the whole library makes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forking import WITHOUT_TIMM, ForkingParent

pytest.importorskip("timm")

# In a real process of its own: torchvision, once loaded, is not forgotten.
BOTH = """
import sys
import torch
from turnaround.model.timm_networks import timm_for

def outputs(library, name):
    torch.manual_seed(0)
    network = library.create_model(name, pretrained=False, num_classes=3).eval()
    with torch.no_grad():
        return network(torch.linspace(-1, 1, 3 * 64 * 64).view(1, 3, 64, 64))

names = ("mobilenetv2_100", "resnet18", "mobilenetv3_small_100")
alone = {name: timm_for(name, downloads=False) for name in names}
assert {type(library).__name__ for library in alone.values()} == {"OneFamily"}
found = {name: (outputs(library, name), library.get_pretrained_cfg(name)) for name, library in alone.items()}
others = ("timm", "timm.models.vgg", "torchvision.models", "huggingface_hub")
loaded = [name for name in others if name in sys.modules]
import timm
for name, (output, facts) in found.items():
    assert torch.equal(output, outputs(timm, name)), name
    assert facts.mean == timm.get_pretrained_cfg(name).mean
assert timm_for("resnet18") is timm
print("loaded:", loaded, len(timm.list_models()) > 1000)
"""


def said(code: str, python: str = sys.executable) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_family_alone_makes_the_networks_of_the_whole_library() -> None:
    """And whoever imports timm afterwards finds the whole of it, torchvision and all."""
    assert said(BOTH) == "loaded: [] True"


def test_where_the_files_are_arranged_otherwise_the_whole_library_is_taken(forking_parent: ForkingParent) -> None:
    """As with another version of timm; a name that no file defines is asked of the whole library, too."""
    code = WITHOUT_TIMM + (
        "from turnaround.model import timm_networks\n"
        "assert timm_networks.family_of('resnet18') == 'timm.models.resnet'\n"
        "assert timm_networks.family_of('no_such_network') is None\n"
        "timm_networks.family_of = lambda network: 'timm.models.no_such_file'\n"
        "library = timm_networks.timm_for('resnet18')\n"
        "print(library.__name__, len(library.list_models()) > 1000)"
    )
    assert said(code, forking_parent.python) == "timm True"


HUB = """
for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
    del sys.modules[name]
from turnaround.model.timm_networks import timm_for

timm_for("resnet18", downloads=False)
hub = sys.modules["timm.models._hub"]
without = hub.has_hf_hub()
timm_for("mobilenetv2_100", downloads=True)
print(without, hub.has_hf_hub(), sys.modules["timm.models._hub"] is hub)
"""


def test_the_hubs_client_is_loaded_when_weights_may_be_fetched(forking_parent: ForkingParent) -> None:
    pytest.importorskip("huggingface_hub")
    assert said(WITHOUT_TIMM + HUB, forking_parent.python) == "False True True"
