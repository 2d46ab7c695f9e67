"""Checks of the network's grids against scan, detector and target, and of the amount of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stemdl.config import Config
from stemdl.config.network import ScanField
from stemdl.preflight.findings import Finding, judge
from stemdl.preflight.sampling import is_whole

if TYPE_CHECKING:
    from stemdl.models.describe import ModelDescription


def check_network(config: Config) -> tuple[list[Finding], ModelDescription | None]:
    """Whether the network can be built for this scan, detector and target, and what it then costs.

    The builder of the network is who knows; nothing is allocated.
    """
    from stemdl.models.describe import describe, short  # brings torch along: only when a network is asked for
    from stemdl.models.errors import NetworkConfigError

    findings = check_scanfield(config)
    try:
        description = describe(config)
    except NetworkConfigError as error:
        if any(finding.severity == "error" and finding.key == error.key for finding in findings):
            return findings, None
        found, _, right = str(error).removeprefix(f"{error.key}: found ").partition("; allowed: ")
        return [*findings, Finding("error", "network", found, right, error.key)], None
    except (RuntimeError, OverflowError) as error:  # torch's own bounds on the size of a tensor
        found = f"sizes that torch refuses: {str(error).splitlines()[0]}"
        return [*findings, Finding("error", "network", found, "a smaller network or field", "network")], None
    weights, flop = short(description.weights), short(description.train_flop_per_sample)
    shape = " x ".join(str(count) for count in description.input_shape)
    found = f"{config.network.name}: {weights} weights, {flop} training FLOP a field of {shape}"
    return [*findings, Finding("ok", "network", found, "", "network")], description


def check_scanfield(config: Config) -> list[Finding]:
    """What `scanfield` asks of scan, target and detector; nothing for another network."""
    network = config.network
    if not isinstance(network, ScanField):
        return []
    step, pixel = config.scan.step_angstrom, config.target.pixel_angstrom
    factor = step / pixel
    found = f"a step of {step:g} Å is {factor:.6g} target pixels of {pixel:.6g} Å"
    whole = max(1, round(factor))
    right = f"a whole number, so that the scan grid can be upsampled to the target: pixels of {step / whole:.10g} Å"
    findings = [judge(not is_whole(factor), "error", "scanfield: upsampling", found, right, "target.pixel_angstrom")]
    binned, pixels = network.pattern_pixels, config.detector.pixels
    found = f"patterns of {pixels[0]} x {pixels[1]} pixels binned to {binned} x {binned}"
    divisors = [n for n in range(1, min(pixels) + 1) if pixels[0] % n == 0 and pixels[1] % n == 0]
    nearest = min(divisors, key=lambda n: abs(n - binned))
    right, key = f"a number that divides the detector's pixels, such as {nearest}", "network.pattern_pixels"
    if nearest == 1 or nearest < min(binned, *pixels) / 2:  # too little would be left of a pattern
        fitting = " x ".join(str(max(1, round(count / binned)) * binned) for count in pixels)
        right, key = f"a detector of whole multiples of {binned} pixels, such as {fitting}", "detector.pixels"
    bad = any(count % binned for count in pixels)
    findings.append(judge(bad, "warning", "scanfield: patterns", found, f"{right}: bins overlap as it is", key))
    return findings


def check_training(config: Config, ranks: int) -> list[Finding]:
    """Ranks against batch, and how often each field is seen."""
    train, samples = config.train, config.simulation.samples
    found = f"a batch of {train.batch} fields on {ranks} rank{'' if ranks == 1 else 's'}"
    lower = train.batch // ranks * ranks
    right = (
        f"a batch that the ranks share evenly: {lower} or {lower + ranks}" if lower else f"a batch of {ranks} or more"
    )
    findings = [judge(train.batch % ranks != 0, "error", "batch and ranks", found, right, "train.batch")]
    stages = config.network.stages if isinstance(config.network, ScanField) else 1
    in_turn = train.batch - (round(train.hard_share * train.batch) if isinstance(config.network, ScanField) else 0)
    epochs = train.steps * max(1, in_turn) / samples
    plural = "" if stages == 1 else "s"
    found = f"{stages} stage{plural} of {train.steps} steps, each field seen {epochs:.3g} times or more a stage"
    right = (
        f"at least {-(-samples // max(1, in_turn))} steps, or fewer simulation.samples: part of the set is never seen"
    )
    findings.append(judge(epochs < 1, "warning", "training steps", found, right, "train.steps"))
    found = f"{train.warmup_steps} steps of warm-up, of {train.steps}"
    right = f"at most {train.steps // 2}: the highest learning rate is hardly reached"
    bad = train.warmup_steps > train.steps / 2
    findings.append(judge(bad, "warning", "warm-up", found, right, "train.warmup_steps"))
    found = f"a batch of {train.batch} fields from {samples}"
    right = f"at most {samples}: a batch repeats fields"
    return [*findings, judge(train.batch > samples, "warning", "batch and samples", found, right, "train.batch")]
