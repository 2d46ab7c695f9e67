"""The kind of sample that the public CBED database of 2019 holds, from our simulation (see `shards.cbed_layout`).

Of each crystal three zone axes: the indices of its three strongest kinematic reflections with 1 Å < d < 5 Å, taken as
directions of the lattice. For each a slab, a convergent probe whose semi-angle is half the Bragg angle of that
reflection at 100 keV, and the mean of the patterns at a raster of positions over the middle of the box. The same three
slabs serve every beam energy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from data_gen.engines import Engine
from data_gen.imaging import setup_for
from data_gen.materials import BadCrystal, Crystal, split_by_material
from data_gen.orientation import Orientation, rotation_matrix, three_floats, three_integers
from data_gen.reflections import Reflection, strongest_reflections
from data_gen.specimen import Specimen, cut_specimen, displaced
from data_gen.worklist import select_crystals
from stemdl.config import Config
from stemdl.config.substitute import with_values
from stemdl.physics.constants import wavelength_angstrom
from stemdl.seeds import Purpose
from stemdl.shards.cbed_layout import ORIENTATIONS, CbedSample

ENERGIES_KEV: tuple[float, ...] = tuple(float(energy) for energy in range(100, 200, 10))
OVERLAP = 0.5
BRAGG_ENERGY_KEV = 100.0
"""The database's semi-angles are those of its lowest energy, for all ten."""
D_RANGE_ANGSTROM = (1.0, 5.0)
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class CbedOptions:
    """What the configuration does not say."""

    energies_kev: tuple[float, ...] = ENERGIES_KEV
    overlap: float = OVERLAP
    """Convergence semi-angle in units of the Bragg angle at 100 keV."""


@dataclass(frozen=True)
class CbedCrystal:
    """A crystal, its number (from which its random numbers follow), its three reflections, and where it belongs."""

    crystal: Crystal
    number: int
    reflections: tuple[Reflection, ...]
    split: str


def choose_crystals(config: Config, most: int | None = None) -> tuple[list[CbedCrystal], list[BadCrystal]]:
    """The configuration's crystals in a seeded order, the first `most` of them, and those refused.

    The numbers are those of the list sorted by name. Held-out materials are dealt to "dev" and "test" in turn, all
    others are "train"; where a crystal belongs does not depend on `most`.

    Raises CrystalSelectionError as `worklist.select_crystals`.
    """
    found, refused = select_crystals(config)
    held_out: dict[str, str] = {}
    if len({crystal.formula for crystal in found}) > 1:
        _, apart = split_by_material(found, config.crystals.held_out_fraction, config.run.seed)
        formulas = sorted({crystal.formula for crystal in apart})
        held_out = {formula: ("dev", "test")[index % 2] for index, formula in enumerate(formulas)}
    order = np.random.default_rng(np.random.SeedSequence([config.run.seed, Purpose.SPLIT, 1])).permutation(len(found))
    chosen: list[CbedCrystal] = []
    for number in order.tolist():
        if len(chosen) == most:
            break
        crystal = found[number]
        try:
            reflections = strongest_reflections(
                crystal,
                ORIENTATIONS,
                d_range_angstrom=D_RANGE_ANGSTROM,
                parametrization=config.simulation.parametrization,
            )
        except BadCrystal as error:
            refused.append(error)
            continue
        chosen.append(CbedCrystal(crystal, number, tuple(reflections), held_out.get(crystal.formula, "train")))
    return chosen, refused


def make_cbed(config: Config, chosen: CbedCrystal, options: CbedOptions, engine: Engine) -> Iterator[CbedSample]:
    """The samples of a crystal, one for each energy in the order of `options`.

    From the configuration come box, thickness, tilt and displacements of the specimen, the aberrations, the scan, the
    detector's pixels and the sampling of the training set; neither energy nor semi-angle, `vary` or what the detector
    makes of the patterns. They depend on the seed, the crystal's number and these alone.

    Raises BadCrystal where a box holds no atom, or too many; GridMismatch as `imaging.setup_for`.
    """
    semi_angles = semi_angles_rad(chosen.reflections, options.overlap)
    specimens = [_specimen(config, chosen, orientation) for orientation in range(ORIENTATIONS)]
    shape = (len(options.energies_kev), ORIENTATIONS, *config.detector.pixels)
    stacks = np.zeros(shape, dtype=np.float64)
    for orientation, specimen in enumerate(specimens):
        stacks[:, orientation] = _patterns(
            config, chosen, orientation, specimen, semi_angles[orientation], options, engine
        )
    cell = chosen.crystal.cell_angstrom
    lengths, angles = _lattice_parameters(cell)
    for energy, stack in zip(options.energies_kev, stacks, strict=True):
        yield CbedSample(
            cbed_stack=stack.astype(np.float32),
            space_group=str(chosen.crystal.space_group),
            material=chosen.crystal.name.removeprefix("cif:"),
            formula=chosen.crystal.formula,
            energy_kev=energy,
            z_dirs=np.array([reflection.hkl for reflection in chosen.reflections], dtype=np.float64),
            y_dirs=np.stack([_along_rows(cell, specimen) for specimen in specimens]),
            semi_angles_rad=semi_angles,
            d_hkls_angstrom=np.array([reflection.d_angstrom for reflection in chosen.reflections]),
            abc_angstrom=lengths,
            angles_degree=angles,
            extra={"stemdl_provenance": _provenance(config, chosen, specimens, options, engine)},
        )


def semi_angles_rad(reflections: Sequence[Reflection], overlap: float) -> NDArray[np.float64]:
    """(n,) convergence semi-angles: Bragg angle λ/2d at 100 keV times `overlap`; at 1 neighbouring discs touch."""
    wavelength = wavelength_angstrom(BRAGG_ENERGY_KEV)
    return np.array([overlap * wavelength / (2 * reflection.d_angstrom) for reflection in reflections])


def _specimen(config: Config, chosen: CbedCrystal, orientation: int) -> Specimen:
    """At rest, with the beam along the reflection's indices as a direction of the lattice."""
    box = config.specimen.box_angstrom
    low, high = config.specimen.thickness_angstrom
    seed = (config.run.seed, int(Purpose.CBED_SPECIMEN), chosen.number, orientation)
    quantile = float(np.random.default_rng(np.random.SeedSequence([*seed, 1])).random())
    return cut_specimen(
        chosen.crystal,
        (box, box, low + quantile * (high - low)),
        zone_axes=[chosen.reflections[orientation].hkl],
        tilt_mrad=config.specimen.tilt_mrad,
        displacement_sigma_angstrom=0.0,
        rng_seed=seed,
    )


def _phonon_seed(config: Config, chosen: CbedCrystal, orientation: int, configuration: int) -> tuple[int, ...]:
    return config.run.seed, int(Purpose.CBED_PHONONS), chosen.number, orientation, configuration


def _patterns(
    config: Config,
    chosen: CbedCrystal,
    orientation: int,
    specimen: Specimen,
    semiangle_rad: float,
    options: CbedOptions,
    engine: Engine,
) -> NDArray[np.float64]:
    """(energies, q, q): for each energy the mean over probe positions and displaced configurations."""
    count = config.simulation.frozen_phonons
    total = np.zeros((len(options.energies_kev), *config.detector.pixels))
    for configuration in range(count):
        seed = _phonon_seed(config, chosen, orientation, configuration)
        atoms = displaced(specimen, config.specimen.displacement_sigma_angstrom, seed)
        slices: tuple[torch.Tensor, float] | None = None  # projected potentials do not depend on the energy
        for index, energy in enumerate(options.energies_kev):
            own = with_values(config, {"energy_kev": energy, "semiangle_mrad": 1e3 * semiangle_rad})
            setup = setup_for(own, config.simulation)
            slices = slices or engine.slices(atoms, setup)
            patterns = engine.patterns(*slices, setup)
            total[index] += patterns.mean(dim=(0, 1), dtype=torch.float64).numpy() / count
    return total


def _along_rows(cell: NDArray[np.float64], specimen: Specimen) -> NDArray[np.float64]:
    """(3,) what the box's y axis, along which a pattern's rows count, is in the crystal: components in units of the
    lattice vectors, the largest of size 1."""
    record: dict[str, Any] = specimen.provenance
    orientation = Orientation(
        zone_axis=three_integers(record["zone_axis"]),
        tilt_mrad=(float(record["tilt_mrad"][0]), float(record["tilt_mrad"][1])),
        in_plane_rotation_rad=float(record["in_plane_rotation_rad"]),
        origin_fractional=three_floats(record["origin_fractional"]),
    )
    direction = rotation_matrix(cell, orientation)[1] @ np.linalg.inv(cell)
    return np.asarray(direction / np.abs(direction).max())


def _lattice_parameters(cell: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lengths (3,) in Å and angles (3,) α, β, γ in degrees."""
    lengths = np.linalg.norm(cell, axis=1)
    unit = cell / lengths[:, None]
    cosines = np.array([unit[1] @ unit[2], unit[2] @ unit[0], unit[0] @ unit[1]])
    return lengths, np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0)))


def _provenance(
    config: Config, chosen: CbedCrystal, specimens: Sequence[Specimen], options: CbedOptions, engine: Engine
) -> str:
    phonons = range(config.simulation.frozen_phonons)
    record = {
        "specimens": [specimen.provenance for specimen in specimens],
        "phonon_seeds": [[list(_phonon_seed(config, chosen, o, n)) for n in phonons] for o in range(ORIENTATIONS)],
        "displacement_sigma_angstrom": config.specimen.displacement_sigma_angstrom,
        "overlap": options.overlap,
        "box_angstrom": config.specimen.box_angstrom,
        "dk_per_angstrom": config.detector.dk_per_angstrom,
        "scan_positions": list(config.scan.positions),
        "scan_step_angstrom": config.scan.step_angstrom,
        "grid_pixel_angstrom": config.simulation.pixel_angstrom,
        "slice_angstrom": config.simulation.slice_angstrom,
        "parametrization": config.simulation.parametrization,
        "engine": engine.version(),
    }
    return json.dumps(record, sort_keys=True)
