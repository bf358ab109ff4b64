"""What a forecast energy costs and emits: the rates of a kWh, by one rule with what was measured."""

from __future__ import annotations

import pytest

from turnaround.analysis.energy import EnergyRates
from turnaround.forecast.energy import electricity_cost, emissions_kg
from turnaround.forecast.interval import Interval


def test_a_forecast_energy_is_rated_as_a_measured_one() -> None:
    rates, used = EnergyRates(electricity=0.3, grid=0.35), Interval(value=2000.0, low=1000.0, high=4000.0)
    paid, emitted = electricity_cost(used, rates), emissions_kg(used, rates)
    assert paid is not None
    assert emitted is not None
    assert (paid.value, paid.low, paid.high) == pytest.approx((0.6, 0.3, 1.2))
    assert (paid.value, emitted.value) == (rates.price(2000.0), rates.emissions_kg(2000.0))


def test_free_electricity_costs_nothing_and_what_is_not_known_is_not_nothing() -> None:
    used = Interval.exact(500.0)
    assert electricity_cost(used, EnergyRates(electricity=0.0)) == Interval.exact(0.0)
    assert (electricity_cost(used, EnergyRates()), emissions_kg(None, EnergyRates(grid=1.0))) == (None, None)
