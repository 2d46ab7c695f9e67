"""Baselines on the same fields: what one gets without a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stemdl.config import Config
from stemdl.config.substitute import with_values
from stemdl.models.predictor import Predictor
from stemdl.reconstruct.com import integrated_centre_of_mass
from stemdl.shards.fields import Fields

MEAN = "mean of the training set"
COM = "integrated centre of mass"
BACK_PROJECTION = "back-projection"

Pictures = dict[str, NDArray[np.float64]]


_STEPS = " conjugate-gradient steps"


def iterated_name(steps: int) -> str:
    """Name of the physics that the network corrects, by itself: the strongest comparison."""
    return f"{steps}{_STEPS}"


def is_own_physics(name: str) -> bool:
    """Whether a name is one of `iterated_name`."""
    return name.endswith(_STEPS)


@dataclass(frozen=True)
class LinearFit:
    """One scale and offset for all fields, fitted on the training set: baselines know no absolute potential."""

    scale: float
    offset_v_angstrom: float

    def __call__(self, picture: NDArray[np.float64]) -> NDArray[np.float64]:
        """The picture in V·Å."""
        return picture * self.scale + self.offset_v_angstrom


def fit(pictures: NDArray[np.float64], truth: NDArray[np.float32]) -> LinearFit:
    """Least squares over all pixels of all fields (N, y, x); constant pictures give the mean of the truth."""
    x, y = pictures.ravel(), truth.astype(np.float64).ravel()
    variance = x.var()
    scale = float(((x - x.mean()) * (y - y.mean())).mean() / variance) if variance > 0 else 0.0
    return LinearFit(scale, float(y.mean() - scale * x.mean()))


def raw_pictures(config: Config, fields: Fields, pictures: NDArray[np.float32] | None) -> Pictures:
    """Each baseline's pictures (N, y, x) before the fit.

    pictures: (N, c, y, x) physics channels before the network's first stage, None for a network without any: then there
    is no back-projection to compare with.
    """
    result: Pictures = {COM: np.stack([_centre_of_mass(config, fields, index) for index in range(len(fields))])}
    if pictures is not None and config.network.name == "scanfield":
        steps = config.network.back_projection.steps
        potentials = pictures.shape[1] - 2
        result[BACK_PROJECTION] = pictures[:, 0].astype(np.float64)
        if steps > 1:
            result[iterated_name(steps)] = pictures[:, potentials - 1].astype(np.float64)
    return result


def _centre_of_mass(config: Config, fields: Fields, index: int) -> NDArray[np.float64]:
    """(y, x) of one field, with the energy and the scan step that it was recorded with."""
    own = with_values(config, fields.parameters_of(index))
    shape = fields.potential.shape[1:]
    return integrated_centre_of_mass(
        fields.amplitude[index],
        energy_kev=own.microscope.energy_kev,
        dk_per_angstrom=own.detector.dk_per_angstrom,
        step_angstrom=own.scan.step_angstrom,
        field_pixels=(shape[0], shape[1]),
        field_step_angstrom=config.scan.step_angstrom,
    )


def fitted_baselines(
    config: Config,
    predictor: Predictor,
    training: Fields,
    held_out: Fields,
    held_out_pictures: NDArray[np.float32] | None,
) -> Pictures:
    """Pictures (N, y, x) in V·Å of the held-out fields by each baseline, scaled by a fit on training fields."""
    physics = predictor.look(training.amplitude, training.thickness_angstrom, parameters=training.parameters)
    train_raw = raw_pictures(config, training, None if physics is None else physics.pictures.numpy())
    held_out_raw = raw_pictures(config, held_out, held_out_pictures)
    mean = float(training.potential.mean())
    result: Pictures = {MEAN: np.full(held_out.potential.shape, mean, dtype=np.float64)}
    for name, pictures in held_out_raw.items():
        result[name] = fit(train_raw[name], training.potential)(pictures)
    return result
