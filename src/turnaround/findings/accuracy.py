"""Findings about accuracy across configurations: what more workers cost, and what is only noise."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from turnaround.analysis.compare import value_at
from turnaround.analysis.configurations import ConfigurationRuns, Member, Workload
from turnaround.analysis.guessing import AgainstGuessing, against_guessing
from turnaround.analysis.pools import Noise, Pool, PooledGroup, binomial_noise, groups_of
from turnaround.findings.finding import Draft, Evidence, figure, final_accuracies
from turnaround.findings.labels import label_of, pool_label
from turnaround.optimizers import OPTIMIZERS
from turnaround.words import accuracy, counted, durations, factor, listed, points

MIN_POINTS = 0.003
"""A judgement: a smaller drop is not worth a sentence, however many repeats make it certain."""
POINTS_WITHOUT_NOISE = 0.01
"""Least drop to report where the noise is not known, with that caveat: the band of the plateau."""
DISAGREEING_TIME = 0.15
"""A judgement: range of the repeats as a share of the median epoch time."""
DISAGREEING_NOISES = 4.0
"""Standard deviations between the best and the worst: of five repeats, chance exceeds 3.9 once in 20 (Tukey)."""
DISAGREEING_POINTS = 0.02
"""A judgement: the noise of counting images is only a lower bound of what another seed does."""


def accuracy_falls_with_workers(job: Workload) -> Iterator[Draft]:
    """Report the largest drop against the fewest workers, where it is more than noise, and what changed."""
    for group in groups_of(job):
        fewest, *more = group.pools
        # Another batch on as few workers is a pool of its own, and no matter of workers.
        falling = [pool for pool in more if pool.workers > fewest.workers and _drop(group, fewest, pool) is not None]
        if falling:
            yield _falls(group, fewest, min(falling, key=lambda pool: pool.accuracy))


def _drop(group: PooledGroup, fewest: Pool, pool: Pool) -> float | None:
    """Return the drop of accuracy; None where chance explains it."""
    drop = fewest.accuracy - pool.accuracy
    # One-sided t-test at 95 % with the pooled standard deviation (analysis/pools.py), and a least size.
    limit = POINTS_WITHOUT_NOISE if group.noise is None else max(group.noise.limit(fewest, pool), MIN_POINTS)
    return drop if drop > limit else None


def _falls(group: PooledGroup, fewest: Pool, pool: Pool) -> Draft:
    drop = fewest.accuracy - pool.accuracy
    text = (
        f"Validation accuracy falls from {accuracy(fewest.accuracy)} on {pool_label(fewest)} to "
        f"{accuracy(pool.accuracy)} on {pool_label(pool)} ({points(drop)}; {_certainty(group, fewest, pool)}): "
        f"{_batch_cause(fewest, pool)}; "
        f"{_rate_cause(fewest, pool)}."
    )
    batches = tuple(
        Evidence(run=pool_label(each), what="global batch", value=each.global_batch, unit="images")
        for each in (fewest, pool)
        if each.global_batch
    )
    # Where nothing tells the noise the drop may be chance: a caution then, not the rule's problem.
    return Draft(
        severity="caution" if group.noise is None else None,
        text=text,
        evidence=(*final_accuracies(*group.configurations), *batches),
        advice=_advice(fewest, pool),
    )


def _certainty(group: PooledGroup, fewest: Pool, pool: Pool) -> str:
    few, many = len(fewest.accuracies), len(pool.accuracies)
    runs = f"{few} and {many} runs" if few != many else "one run each" if few == 1 else f"means of {few} runs each"
    if group.noise is None:
        return f"{runs}, and nothing tells how far a second run would differ"
    return f"{runs}; up to {points(group.noise.limit(fewest, pool))} are within noise"


def _batch_cause(fewest: Pool, pool: Pool) -> str:
    """Say what part the global batch has in the drop."""
    before, now = fewest.global_batch, pool.global_batch
    if before is None or now is None:
        return "the record does not give the batch, so the batch cannot be told from the learning rate"
    if before == now:
        return f"the global batch was {now} for both, so it is not the batch"
    ratio = now / before
    fewer = "halved" if ratio == 2 else f"fell to 1/{factor(ratio)}"
    return f"GPUs do not do that, but the global batch grew from {before} to {now} and the number of updates {fewer}"


def _rate_cause(fewest: Pool, pool: Pool) -> str:
    """Say what part the learning rate has in the drop, as far as the record tells."""
    recipe = pool.configurations[0].members[0].run.recipe
    rule, optimizer = (value_at(recipe, "training", key) for key in ("scaling", "optimizer"))
    if rule is None:
        return "how the learning rate was scaled is not recorded, and too large a rate does the same"
    # What rules the rate out comes first, then the two known mistakes (none, and linear with Adam), then mere rules.
    if fewest.global_batch == pool.global_batch:
        each = value_at(recipe, "training", "batch_per_worker")
        return f"nor the learning rate; batch norm, where it learns, sees only the {each} images of its worker"
    if rule == "none":
        return "the learning rate was not raised for the larger batch (scaling = none)"
    # Raised by the workers themselves, not by the ratio of the two pools: a recipe's rate is that of one worker.
    row = OPTIMIZERS.get(str(optimizer))
    if rule == "linear" and row is not None and row.is_adaptive:
        return f"the learning rate was raised {factor(pool.workers)}-fold (scaling = linear), too much for {optimizer}"
    if rule == "auto":
        return "the learning rate followed the rule of its optimizer (scaling = auto), so what is left is the batch"
    return f"the learning rate was raised by the {rule} rule, and nothing else was adjusted"


def _advice(fewest: Pool, pool: Pool) -> str:
    count, batch = pool.workers, fewest.global_batch
    # Rounded up to a multiple of the workers, who share it equally.
    keep = f", or keep the global batch: --set training.batch_total={-(-batch // count) * count}" if batch else ""
    is_auto = value_at(pool.configurations[0].members[0].run.recipe, "training", "scaling") == "auto"
    if is_auto:
        return f"Train for more epochs on {count} workers{keep}. Rehearse it on one GPU first (--processes 1)."
    return (
        f"Rehearse it on one GPU before paying for {count}: turnaround train SOURCE --workers {count} --processes 1 "
        f"--set training.scaling=auto{keep}."
    )


def no_better_than_guessing(job: Workload) -> Iterator[Draft]:
    """Report the finished runs whose accuracy cannot be told from always answering the largest class."""
    held = [(member, found) for member in job.members if (found := _held(member)) is not None]
    failing = [(member, found) for member, found in held if not found.is_better]
    if not failing:
        return
    # The one with the most workers: what fails at scale is named by its scale.
    member, found = max(failing, key=lambda pair: pair[0].summary.workers)
    others = [one.summary.name for one, _ in failing if one is not member]
    verdict = "is no better than" if found.accuracy <= found.guessing else "cannot be told from"
    good = [one for one, held_one in held if held_one.is_better and one.summary.workers < member.summary.workers]
    images = counted(found.num_images, "validation image")
    text = (
        f"{member.summary.name} {verdict} guessing the largest class ({accuracy(found.guessing)}): it has "
        f"{accuracy(found.accuracy)} of {images} (95 % interval {accuracy(found.low)} to {accuracy(found.high)}), and "
        f"{found.largest_class!r} for every image needs no network{_at_scale(member, good)}"
        f"{f'; so is it with {listed(others)}' if others else ''}."
    )
    evidence = (
        Evidence(run=one.summary.name, what=what, value=value, unit="share")
        for one, held_one in failing
        for what, value in (("final validation accuracy", held_one.accuracy), ("guessing", held_one.guessing))
    )
    yield Draft(text=text, evidence=tuple(evidence), advice=_advice_at_chance(member, found, has_good=bool(good)))


def one_class_validated(job: Workload) -> Iterator[Draft]:
    """Report runs that were validated with images of one of their classes alone: whoever always answers it is right."""
    alone: dict[str, list[str]] = {}
    for summary, run in job.members:
        counts = {one.name: one.num_images for one in run.evaluation.per_class} if run.evaluation else {}
        seen = [name for name, images in counts.items() if images > 0]
        if len(seen) == 1 and len(counts) > 1:
            alone.setdefault(seen[0], []).append(summary.name)
    for name, runs in alone.items():
        yield Draft(
            text=f"All validation images of {listed(runs)} are of {name!r}, so the accuracy says nothing of the other "
            "classes: whoever always answers that one is always right.",
            evidence=(Evidence(run=runs[0], what="classes with validation images", value=1.0),),
            advice="Bring more images of the other classes, or hold more of them out (data.holdout).",
        )


def _held(member: Member) -> AgainstGuessing | None:
    # Finished runs only: one that was stopped may have been on its way.
    evaluation = member.run.evaluation if member.summary.state == "finished" else None
    return against_guessing(evaluation) if evaluation is not None else None


def _at_scale(member: Member, good: Sequence[Member]) -> str:
    """Say what the number of workers may have to do with it: the rule, how far it was tested, and fewer workers."""
    summary, run = member
    if summary.workers == 1:
        return ""
    rule, optimizer = (value_at(run.recipe, "training", key) for key in ("scaling", "optimizer"))
    told = f", on {summary.workers} workers with {optimizer} and scaling = {rule}" if rule and optimizer else ""
    # Written by whoever trains, from the optimizer's row: up to how many workers its rule was measured.
    tested = value_at(run.machine, "choices", "workers_tested", "value")
    if told and isinstance(tested, int) and tested < summary.workers:
        told += f", which are not known to hold beyond {counted(tested, 'worker')}"
    if good:
        best = max(good, key=lambda one: one.summary.workers)
        reached = accuracy(best.summary.final_val_accuracy)
        told += f"; {best.summary.name}, on {counted(best.summary.workers, 'worker')}, reaches {reached}"
    return told


def _advice_at_chance(member: Member, found: AgainstGuessing, *, has_good: bool) -> str:
    recipe = member.run.recipe
    # In this order: too few images to tell, too many workers for this rate, a network that starts from nothing, and
    # the images last, which no figure here can accuse.
    if found.accuracy > found.guessing:
        return "Hold more images out (data.holdout), or bring more: so few cannot tell it from guessing."
    if has_good:
        return "Lower the learning rate, lengthen the warm-up, or choose another optimizer, and rehearse it first."
    source = shlex.quote(str(value_at(recipe, "data", "source") or "SOURCE"))
    if value_at(recipe, "model", "weights") == "none":
        return (
            f"Do not use it. Start from trained weights: turnaround train {source} --pretrained. Or train for more "
            "epochs, with another learning rate."
        )
    return f"Do not use it. Look at the images (turnaround check {source}), then try another learning rate."


def noise_larger_than_difference(job: Workload) -> Iterator[Draft]:
    """Report that chance explains the distance of the best and the worst."""
    for group in groups_of(job):
        if len(group.pools) < 2 or group.noise is None:
            continue
        ordered = sorted(group.pools, key=lambda pool: pool.accuracy)
        # The two that are farthest apart stand for all others.
        worst, best = ordered[0], ordered[-1]
        difference, limit = best.accuracy - worst.accuracy, group.noise.limit(best, worst)
        if difference <= limit:
            text = (
                f"The accuracies of {listed([pool_label(pool) for pool in group.pools])} lie within "
                f"{points(difference)}, "
                f"and up to {points(limit)} are within noise ({_noise_source(group.noise)}): they cannot be ranked."
            )
            yield Draft(
                text=text,
                evidence=final_accuracies(*group.configurations),
                advice="If the order matters, repeat each with three seeds or more; otherwise decide by time.",
            )


def _noise_source(noise: Noise) -> str:
    """Say where the figure for chance comes from."""
    if noise.source == "repeats":
        return f"scatter of {noise.num_runs} runs that share workers and batch with another"
    return "noise of the curves" if noise.source == "curves" else "noise of counting the validation images"


def one_seed_only(job: Workload) -> Iterator[Draft]:
    """Report that the configurations compared were run once each."""
    for group in groups_of(job):
        if len(group.configurations) > 1 and group.is_one_run_each:
            size = "how far a second run would differ is not known"
            if group.noise is not None:
                smallest = group.noise.limit(group.pools[0], group.pools[-1])
                size = f"differences below {points(smallest)} are within noise ({_noise_source(group.noise)})"
            yield Draft(
                text=f"Each of the {len(group.configurations)} configurations was run once: {size}.",
                evidence=final_accuracies(*group.configurations),
                advice="Repeat them with other seeds: three each are enough to claim an order.",
            )


def repeats_disagree(job: Workload) -> Iterator[Draft]:
    """Report runs of one configuration that differ by more than chance, in accuracy or in time."""
    for configuration in job.configurations:
        if parts := [part for part in (_accuracy_range(configuration), _time_range(configuration)) if part]:
            evidence = [
                item
                for run in configuration.summaries
                for item in (
                    *figure(run.name, "final validation accuracy", run.final_val_accuracy, "share"),
                    *figure(run.name, "epoch time", run.epoch_time_s, "s"),
                )
            ]
            runs = counted(len(configuration.summaries), "run")
            yield Draft(
                text=f"The {runs} of {label_of(configuration)} disagree: {' and '.join(parts)}.",
                evidence=tuple(evidence),
                advice="Look for what differs between them (another machine, other load) before you average them.",
            )


def _accuracy_range(configuration: ConfigurationRuns) -> str | None:
    spread = configuration.final_val_accuracy
    if spread is None or spread.count < 2:
        return None
    limit = max(DISAGREEING_NOISES * (binomial_noise(configuration) or 0.0), DISAGREEING_POINTS)
    if spread.high - spread.low <= limit:
        return None
    return f"final accuracies from {accuracy(spread.low)} to {accuracy(spread.high)}"


def _time_range(configuration: ConfigurationRuns) -> str | None:
    spread = configuration.epoch_time_s
    if spread is None or spread.count < 2 or spread.high - spread.low <= DISAGREEING_TIME * spread.value:
        return None
    return f"epochs from {' to '.join(durations(spread.low, spread.high))}"
