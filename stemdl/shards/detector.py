"""The detector through which sealed samples are loaded: one simulated set serves at any dose and for many detectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stemdl.config import Config
from stemdl.config.variation import Draw
from stemdl.errors import UserError
from stemdl.physics.detector_effects import Amplitude, DetectorEffects, point_spread, read_out
from stemdl.seeds import Purpose
from stemdl.shards.schema import ShardError

DOSE = "dose_e_per_a2"
DOSE_QUANTILE = "dose_quantile"
SCAN_STEP = "scan_step_angstrom"
"""Names among the parameters of a sample."""

_MOST_ELECTRONS = 1e18
_LARGEST_FRACTION = 65504.0**2  # float16 holds its root


class DetectorError(UserError, ValueError):
    """A detector that cannot be; names the keys of the configuration."""


@dataclass(frozen=True)
class DetectorModel:
    """The detector of a set of samples, its dose, and where its random numbers come from.

    Shot and readout noise follow from (seed, `noise`, epoch, item), dead and hot pixels from (seed, `bad_pixels`,
    epoch, item): whatever other samples are read, and a detector of its own for every sample and epoch, so that a
    network does not learn one.
    """

    effects: DetectorEffects
    dose_e_per_a2: float | Draw | None
    scan_step_angstrom: float
    """That of samples that record none of their own."""
    seed: int
    noise: Purpose
    bad_pixels: Purpose

    @property
    def is_random(self) -> bool:
        """Whether a second look at the same sample would be another one."""
        return self.dose_e_per_a2 is not None or self.effects.dead_fraction > 0 or self.effects.hot_fraction > 0

    def dose_of(self, parameters: Mapping[str, float]) -> float | None:
        """The dose in e/Å² that a sample is seen at, None without noise. Raises ShardError where its draw is missing.

        A drawn dose follows from the quantile that the simulation drew and stored, so a range may be changed later.
        """
        if not isinstance(self.dose_e_per_a2, Draw):
            return self.dose_e_per_a2
        if DOSE_QUANTILE not in parameters:
            raise ShardError(f"{DOSE_QUANTILE} is not recorded, which vary.{DOSE} needs; simulate it again")
        return self.dose_e_per_a2.at(float(parameters[DOSE_QUANTILE]))

    def spread(self, amplitude: Amplitude) -> Amplitude:
        """(sy, sx, qy, qx) under the point spread: what is the same at every look."""
        return point_spread(amplitude, self.effects.blur_sigma_pixels)

    def record(self, spread: Amplitude, item: int, epoch: int, parameters: Mapping[str, float]) -> Amplitude:
        """(sy, sx, qy, qx) as read in an epoch, from what `spread` gave. Raises ShardError as `dose_of`."""
        dose = self.dose_of(parameters)
        step = float(parameters.get(SCAN_STEP, self.scan_step_angstrom))
        return read_out(
            spread,
            self.effects,
            None if dose is None else dose * step**2,
            noise_seed=(self.seed, self.noise, epoch, item),
            bad_pixel_seed=(self.seed, self.bad_pixels, epoch, item),
        )


def detector_model(config: Config, part: Literal["train", "held_out"]) -> DetectorModel | None:
    """The detector that a configuration describes; None for an ideal one, which leaves samples as they are.

    Raises DetectorError where something in electrons is asked for without a dose, or in ADU without a gain, or where
    the numbers of electrons are beyond what can be drawn and kept.
    """
    section, vary = config.detector, config.vary
    dose = vary.dose_e_per_a2 if vary.dose_e_per_a2 is not None else section.dose_e_per_a2
    in_electrons = {
        "hot_fraction": section.hot_fraction > 0,
        "saturation_electrons": section.saturation_electrons is not None,
        "adu_per_electron": section.adu_per_electron is not None,
    }
    wanting = [f"detector.{key}" for key, asked in in_electrons.items() if asked]
    if dose is None and wanting:
        raise DetectorError(
            f"{', '.join(wanting)}: found without a dose; allowed with detector.{DOSE} or vary.{DOSE}, which say how "
            "many electrons there are"
        )
    if section.readout_sigma_adu > 0 and section.adu_per_electron is None:
        raise DetectorError(
            f"detector.readout_sigma_adu: found {section.readout_sigma_adu:g} without a gain; allowed with "
            "detector.adu_per_electron, which says what an ADU is"
        )
    if dose is not None:
        _check_electrons(config, dose.limits if isinstance(dose, Draw) else (dose, dose))
    elif section.dead_fraction == 0 and section.blur_sigma_pixels == 0:
        return None
    train = part == "train"
    return DetectorModel(
        effects=DetectorEffects(
            blur_sigma_pixels=section.blur_sigma_pixels,
            saturation_electrons=section.saturation_electrons,
            adu_per_electron=section.adu_per_electron,
            readout_sigma_adu=section.readout_sigma_adu,
            dead_fraction=section.dead_fraction,
            hot_fraction=section.hot_fraction,
            hot_electrons=section.hot_electrons,
        ),
        dose_e_per_a2=dose,
        scan_step_angstrom=config.scan.step_angstrom,
        seed=config.run.seed,
        noise=Purpose.TRAIN_DOSE if train else Purpose.HELD_OUT_DOSE,
        bad_pixels=Purpose.TRAIN_DETECTOR if train else Purpose.HELD_OUT_DETECTOR,
    )


def _check_electrons(config: Config, doses: tuple[float, float]) -> None:
    """Raise DetectorError for numbers of electrons that cannot be drawn, or whose fractions float16 cannot hold."""
    step = config.vary.step_angstrom.limits if config.vary.step_angstrom is not None else (config.scan.step_angstrom,)
    fewest, most = doses[0] * min(step) ** 2, doses[1] * max(step) ** 2
    section = config.detector
    hot = section.hot_electrons if section.saturation_electrons is None else section.saturation_electrons
    excess = max(1.0, hot if section.hot_fraction > 0 else 0.0, 1 / (section.adu_per_electron or 1.0))
    if not excess / _LARGEST_FRACTION < fewest <= most < _MOST_ELECTRONS:
        raise DetectorError(
            f"detector.{DOSE} (or vary.{DOSE}): found {fewest:g} to {most:g} electrons a pattern; allowed are "
            f"{excess / _LARGEST_FRACTION:.3g} to {_MOST_ELECTRONS:g}"
        )
