"""The words for the energy of runs, what it costs and emits at the rates that the user gives, and findings about it."""

from __future__ import annotations

from collections.abc import Iterator

from turnaround.analysis.configurations import ConfigurationRuns, Workload
from turnaround.analysis.energy import EnergyRates, RunEnergy, Unknown
from turnaround.findings.finding import Draft, Evidence
from turnaround.findings.labels import label_of
from turnaround.words import counted, emissions, energy, money, number

_UNKNOWN: dict[Unknown, str] = {
    "no GPU": "it ran on processors, whose energy is not measured",
    "no telemetry": "the record has no samples of the GPUs",
    "GPUs not told": "the record does not say which of the GPUs were used",
    "GPU not sampled": "a GPU of the run was not sampled",
    "neither counter nor power": "the driver tells neither the energy nor the power of a GPU",
}
_SOURCE = {"counter": "by their energy counters", "watts": "from their power, sampled once a second"}


def energy_text(used: RunEnergy, rates: EnergyRates | None = None) -> str:
    """Return the energy of a run, how it was measured and what must be known beside it; or why it is not known."""
    if used.wh is None or used.source is None:
        reason = f": {_UNKNOWN[used.unknown]}" if used.unknown else ""
        return f"not known{reason}"
    watts = f", {number(used.watts)} W each" if used.watts is not None else ""
    text = f"{energy(used.wh)} of {counted(used.num_gpus, 'GPU')}{watts}, {_SOURCE[used.source]}"
    text += "".join(f"; {clause}" for clause in rated(used.wh, rates or EnergyRates()))
    if used.num_shared:
        text += "; other programs computed there too, and theirs is in it"
    if used.resets:
        text += f"; a counter began again {counted(used.resets, 'time')}, what came just before is not counted"
    return text


def rated(wh: float, rates: EnergyRates) -> Iterator[str]:
    """Yield price and emissions of an energy, as far as their rates are given."""
    if (price := rates.price(wh)) is not None:
        paid = money(price) if price == 0 or price >= 0.1 else number(price, 2)  # a short run costs less than a cent
        yield f"{paid} for electricity at {rates.electricity:g} per kWh"
    if (kg := rates.emissions_kg(wh)) is not None:
        yield f"{emissions(kg)} at {rates.grid:g} kg per kWh"


def rated_lines(job: Workload, rates: EnergyRates) -> list[str]:
    """Return a sentence for each configuration with the price and the emissions of one run; nothing without rates."""
    return [_rated_line(each, rates) for each in job.configurations if rates.is_given and not each.is_rehearsal]


def _rated_line(configuration: ConfigurationRuns, rates: EnergyRates) -> str:
    spread = configuration.energy_wh
    if spread is None:
        reasons = [_UNKNOWN[one.unknown] for one in configuration.energies if one.unknown is not None]
        return f"{label_of(configuration)}: energy not known" + (f", {reasons[0]}" if reasons else "") + "."
    return f"{label_of(configuration)}: {energy(spread.value)} a run, {', '.join(rated(spread.value, rates))}."


def shared_gpus(job: Workload) -> Iterator[Draft]:
    """Report GPUs on which programs of others computed during a run: neither times nor energy are the run's alone."""
    for configuration in job.configurations:
        shared = [
            summary.name
            for summary, used in zip(configuration.summaries, configuration.energies, strict=True)
            if used.num_shared
        ]
        if shared:
            text = (
                f"Programs of others computed on the GPUs of {label_of(configuration)} during "
                f"{counted(len(shared), 'run')}"
                f" ({', '.join(shared[:3])}): their energy is in the figures, and the times may be longer for them."
            )
            evidence = (Evidence(run=label_of(configuration), what="runs on shared GPUs", value=float(len(shared))),)
            yield Draft(text=text, evidence=evidence, advice="Measure again on GPUs that nobody else uses.")
