"""Both engines: same slices, same patterns; same atoms, same slices; and FFTW against the plain multislice."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_gen.engines import Engine, ImagingSetup, engine_by_name, fftw_plans
from data_gen.engines.fftw import BandLimitedMultislice
from data_gen.engines.propagation import FftwPropagation, TorchPropagation
from data_gen.engines.torch_engine import TorchEngine
from data_gen.potential import potential_slices
from data_gen.specimen import Specimen
from physics_cases import OPTICS, atoms, random_atoms, random_potential, relative
from stemdl.physics.constants import interaction_parameter
from stemdl.physics.detector import to_detector
from stemdl.physics.grid import Grid
from stemdl.physics.multislice import diffraction_waves, intensities_, propagator, transmission
from stemdl.physics.probe import Optics, probes

# abTEM takes seconds to import: with pytest-xdist's --dist loadgroup one process imports it for all tests of this file.
pytestmark = pytest.mark.xdist_group("abtem")

ABERRATED = Optics(
    energy_kev=200.0,
    semiangle_mrad=15.0,
    defocus_angstrom=60.0,
    c3_angstrom=1e6,
    astigmatism_angstrom=40.0,
    astigmatism_azimuth_rad=0.4,
)
SETUP = ImagingSetup(
    optics=OPTICS,
    grid=Grid(64, 16.0),
    scan_shape=(2, 3),
    scan_step_angstrom=1.3,
    detector_pixels=(32, 30),
    detector_binning=1,
    slice_angstrom=2.0,
    parametrization="kirkland",
    probe_chunk=4,
)
BOX = (16.0, 16.0, 8.0)


@pytest.fixture(scope="session")
def abtem_engine() -> Engine:
    from data_gen.engines.abtem_engine import AbtemEngine

    return AbtemEngine("infinite")


def _plain(slices: torch.Tensor, thickness: float, setup: ImagingSetup) -> torch.Tensor:
    """(sy, sx, qy, qx): full 2-D transforms by torch, all probes at once."""
    waves = probes(setup.optics, setup.grid, setup.positions())
    kernel = propagator(setup.optics, setup.grid, thickness)
    intensity = intensities_(waves, transmission(setup.optics, setup.grid, slices), kernel)
    recorded = to_detector(intensity, setup.detector_pixels, setup.detector_binning)
    return recorded.reshape(*setup.scan_shape, *setup.detector_pixels)


@pytest.mark.parametrize("pixels", [16, 27, 45, 64, 72, 96])
@pytest.mark.parametrize("slices", [1, 4])
def test_fftw_does_what_the_plain_multislice_does(pixels: int, slices: int) -> None:
    grid = Grid(pixels, pixels / 4)
    setup = replace(SETUP, grid=grid, detector_pixels=(pixels // 2, pixels // 2 + 3))
    potential = random_potential(grid, 300.0, 1, slices=slices)
    found = TorchEngine().patterns(potential, 2.0, setup)
    expected = _plain(potential, 2.0, setup)
    assert relative(found, expected) < 1e-5
    assert relative(TorchEngine(fftw=False).patterns(potential, 2.0, setup), expected) < 1e-6


def test_patterns_do_not_depend_on_the_chunk_or_on_what_was_made_before() -> None:
    potential = random_potential(SETUP.grid, 300.0, 2, slices=4)
    engine = TorchEngine()
    first = engine.patterns(potential, 2.0, SETUP)
    engine.patterns(random_potential(SETUP.grid, 900.0, 3, slices=2), 1.0, SETUP)
    assert torch.equal(engine.patterns(potential, 2.0, replace(SETUP, probe_chunk=1)), first)
    assert torch.equal(engine.patterns(potential, 2.0, replace(SETUP, probe_chunk=64)), first)


def test_transmission_functions_made_slab_by_slab_give_the_same_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    potential = random_potential(SETUP.grid, 300.0, 2, slices=5)
    at_once = TorchEngine().patterns(potential, 2.0, SETUP)
    monkeypatch.setattr("data_gen.engines.propagation._KEPT_TRANSMISSIONS_BYTES", 2 * 8 * 64**2)  # two slices
    for setup in (SETUP, replace(SETUP, probe_chunk=5)):
        assert torch.equal(TorchEngine().patterns(potential, 2.0, setup), at_once)


@pytest.mark.parametrize("pixels", [27, 64])
def test_fftw_makes_the_transmission_functions_of_the_plain_multislice(pixels: int) -> None:
    grid = Grid(pixels, 16.0)
    slices = random_potential(grid, 300.0, 2, slices=3)
    aperture = grid.antialias().to(torch.complex64).numpy()
    found = BandLimitedMultislice(pixels).transmissions(slices.numpy(), interaction_parameter(100.0), aperture)
    expected = transmission(OPTICS, grid, slices)
    assert float((torch.from_numpy(found) - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("fftw", [True, False])
def test_exit_waves_are_those_of_the_intensities(fftw: bool) -> None:
    potential = random_potential(SETUP.grid, 300.0, 2, slices=3)
    waves = probes(OPTICS, SETUP.grid, SETUP.positions())
    made = FftwPropagation(potential, 2.0, SETUP) if fftw else TorchPropagation(potential, 2.0, SETUP)
    exits, intensities = made.exit_waves(waves), made.probe_intensities(SETUP.positions())
    assert relative(exits.abs().square(), intensities) < 1e-6
    kernel = propagator(OPTICS, SETUP.grid, 2.0)
    expected = diffraction_waves(waves, transmission(OPTICS, SETUP.grid, potential), kernel)
    assert float((exits - expected).norm() / expected.norm()) < 1e-5


def test_estimated_plans_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("estimated" in TorchEngine().version()) is not fftw_plans.load()
    monkeypatch.setattr(fftw_plans, "load", lambda: False)
    assert "with estimated plans" in TorchEngine().version()


def test_probes_that_are_kept_are_the_ones_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for many chunks, other optics and other positions in between."""
    potential = random_potential(SETUP.grid, 300.0, 2, slices=2)
    many = replace(SETUP, scan_shape=(5, 5), probe_chunk=2)
    others = (many, replace(SETUP, optics=ABERRATED), replace(SETUP, scan_offsets_angstrom=((0.1, 0.2),) * 6), SETUP)
    kept = [TorchEngine().patterns(potential, 2.0, setup) for setup in others]
    monkeypatch.setattr("data_gen.engines.propagation._KEPT_PROBES_BYTES", 0)
    for setup, patterns in zip(others, kept, strict=True):
        assert torch.equal(TorchEngine().patterns(potential, 2.0, setup), patterns)


@pytest.mark.parametrize("optics", [OPTICS, ABERRATED, replace(OPTICS, defocus_angstrom=-50.0, c3_angstrom=-2e5)])
def test_given_the_same_slices_both_engines_agree(abtem_engine: Engine, optics: Optics) -> None:
    """Through defocus, C3 and astigmatism, anti-alias aperture and propagation."""
    setup = replace(SETUP, optics=optics)
    slices, thickness = potential_slices(random_atoms(60, BOX, seed=1), setup.grid, 2.0, "kirkland")
    ours = TorchEngine().patterns(slices, thickness, setup)
    theirs = abtem_engine.patterns(slices, thickness, setup)
    assert ours.shape == theirs.shape == (2, 3, 32, 30)
    assert relative(ours, theirs) < 1e-4  # asked for: 3e-3


@pytest.mark.parametrize("parametrization", ["kirkland", "lobato"])
def test_slices_agree_for_atoms_on_pixel_centres(abtem_engine: Engine, parametrization: str) -> None:
    setup = replace(SETUP, parametrization=parametrization)
    anywhere = random_atoms(60, BOX, seed=2)
    pixel = setup.grid.pixel_angstrom
    lateral = np.round(anywhere.positions_angstrom[:, :2] / pixel) % setup.grid.pixels * pixel
    specimen = replace(anywhere, positions_angstrom=np.column_stack([lateral, anywhere.positions_angstrom[:, 2]]))
    ours, theirs = TorchEngine().slices(specimen, setup), abtem_engine.slices(specimen, setup)
    _compare_slices(ours, theirs, setup.grid, 0.01)
    # What is left is abTEM's correction of its bilinear deltas, 1 / (sin u / u) with u = |k| times the pixel; the form
    # factors themselves are the same.
    u = setup.grid.k_squared().sqrt() * setup.grid.pixel_angstrom
    damped = torch.fft.ifft2(torch.fft.fft2(theirs[0]) * torch.sinc(u / torch.pi)).real.to(torch.float32)
    _compare_slices(ours, (damped, theirs[1]), setup.grid, 1e-4)


@pytest.mark.parametrize("parametrization", ["kirkland", "lobato"])
def test_slices_agree_for_atoms_anywhere_with_abtem_sampled_finer(abtem_engine: Engine, parametrization: str) -> None:
    """abTEM spreads off-grid atoms bilinearly: 10 % off on the same grid, little on one four times finer."""
    setup = replace(SETUP, parametrization=parametrization)
    specimen = random_atoms(60, BOX, seed=3)
    ours = TorchEngine().slices(specimen, setup)
    fine, thickness = abtem_engine.slices(specimen, replace(setup, grid=Grid(4 * 64, 16.0)))
    _compare_slices(ours, (_fourier_crop(fine, 64), thickness), setup.grid, 0.01)
    same, _ = abtem_engine.slices(specimen, setup)
    assert relative(same, ours[0]) > 0.02  # what the finer grid is for


def test_finite_projection_shares_an_atom_among_the_slices_it_reaches(abtem_engine: Engine) -> None:
    """abTEM's default: tails reach into the next slices. Its points sample the atom's core, hence the few per cent."""
    finite = engine_by_name("abtem")
    specimen = atoms([14], [[8.1, 8.2, 4.0]], BOX)
    one, _ = finite.slices(specimen, SETUP)
    other, _ = TorchEngine().slices(specimen, SETUP)
    assert "finite" in finite.version()
    assert "infinite" in abtem_engine.version()
    assert float(one.sum()) == pytest.approx(float(other.sum()), rel=0.05)
    shares = one.sum(dim=(1, 2)) / one.sum()
    assert float(shares[1]) == pytest.approx(float(shares[2]), abs=0.01)
    assert 0.001 < float(shares[0]) < 0.02
    assert torch.count_nonzero(other.sum(dim=(1, 2)).abs() > 1e-3) == 1


def test_patterns_from_atoms_agree(abtem_engine: Engine) -> None:
    """The whole way from atoms on pixel centres: one per cent of potential is a few per cent of pattern at most."""
    positions = np.random.default_rng(4).integers(0, 64, (40, 3)) * [0.25, 0.25, 0.125]
    specimen = atoms([8, 22, 38, 14] * 10, positions, BOX)
    ours = TorchEngine().patterns(*TorchEngine().slices(specimen, SETUP), SETUP)
    theirs = abtem_engine.patterns(*abtem_engine.slices(specimen, SETUP), SETUP)
    assert relative(ours, theirs) < 0.02


def test_the_recipe_of_abtem_comes_near_ours_on_a_fine_grid() -> None:
    """Orientation, scan order, scale and every aberration; what is left is its bilinear placing of atoms."""
    from data_gen.engines.abtem_recipe import AbtemRecipe

    setup = replace(SETUP, optics=ABERRATED, grid=Grid(256, 16.0))
    specimen = random_atoms(60, BOX, seed=1)
    ours = TorchEngine().patterns(*TorchEngine().slices(specimen, setup), setup)
    recipe = AbtemRecipe(one_thread=True)
    assert relative(recipe.patterns(specimen, setup), ours) < 0.01
    assert "recipe" in recipe.version()
    with pytest.raises(ValueError, match="not binned"):
        recipe.patterns(specimen, replace(setup, detector_binning=2))


def _compare_slices(
    ours: tuple[torch.Tensor, float], theirs: tuple[torch.Tensor, float], grid: Grid, tolerance: float
) -> None:
    """Every slice with its mean, in the frequencies that the anti-alias aperture lets through."""
    assert ours[0].shape == theirs[0].shape
    assert ours[1] == pytest.approx(theirs[1])
    for one, other in zip(ours[0], theirs[0], strict=True):
        spectra = (torch.fft.fft2(slice_) * grid.antialias() for slice_ in (one, other))
        assert relative(next(spectra), next(spectra)) < tolerance


def _fourier_crop(fine: torch.Tensor, pixels: int) -> torch.Tensor:
    """Slices on a coarser grid with the same frequencies below its Nyquist frequency, which is halved as in ours."""
    factor = fine.shape[-1] // pixels
    spectrum = torch.fft.fft2(fine) / factor**2
    for axis in (-2, -1):
        index = torch.fft.fftfreq(pixels, 1 / pixels).round().to(torch.int64)
        kept = spectrum.index_select(axis, index % fine.shape[axis])
        nyquist = spectrum.select(axis, pixels // 2) + spectrum.select(axis, fine.shape[axis] - pixels // 2)
        kept.select(axis, pixels // 2).copy_(nyquist / 2)
        spectrum = kept
    cropped: torch.Tensor = torch.fft.ifft2(spectrum).real
    return cropped


def test_our_engine_and_its_tables_come_without_importing_abtem() -> None:
    code = (
        "import sys, torch\n"
        "from data_gen.engines.torch_engine import TorchEngine\n"
        "from data_gen.scattering import scattering_factor\n"
        "scattering_factor(14, torch.zeros(1, dtype=torch.float64), 'lobato')\n"
        "found = sorted({name.split('.')[0] for name in sys.modules} & {'abtem', 'numba', 'ase'})\n"
        "raise SystemExit(f'imported: {found}' if found else 0)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_engines_are_found_by_name() -> None:
    engine: Any = engine_by_name("torch")
    assert isinstance(engine, TorchEngine)
    assert "torch" in engine.version()
    assert "FFTW" in engine.version()
    assert "FFTW" not in TorchEngine(fftw=False).version()
    with pytest.raises(ValueError, match="FFTW works on the CPU alone"):
        TorchEngine("meta", fftw=True)
    with pytest.raises(ValueError, match="known are 'torch' and 'abtem'"):
        engine_by_name("multem")


def test_offsets_are_added_to_the_raster() -> None:
    offsets = ((0.0, -0.5), (1.0, -0.5), (0.0, 0.0), (0.3, 0.0), (0.0, 0.0), (1.37, 0.2))
    jittered = replace(SETUP, scan_offsets_angstrom=offsets)
    moved = jittered.positions() - SETUP.positions()
    assert torch.allclose(moved, torch.tensor(offsets, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"shape \(5, 2\), but the scan has 6 positions"):
        replace(SETUP, scan_offsets_angstrom=offsets[:5]).positions()
    potential = random_potential(SETUP.grid, 300.0, 2, slices=2)
    single = replace(SETUP, scan_shape=(1, 1))
    offset_y, offset_x = (jittered.positions()[5] - single.positions()[0]).tolist()
    alone = TorchEngine().patterns(potential, 2.0, replace(single, scan_offsets_angstrom=((offset_y, offset_x),)))
    assert relative(TorchEngine().patterns(potential, 2.0, jittered)[1, 2], alone[0, 0]) < 1e-5


def _lonely_atom() -> Specimen:
    return atoms([79], [[8.0, 8.0, 4.0]], BOX)


def test_a_wider_detector_than_the_grid_records_the_same_and_zeros() -> None:
    slices, thickness = TorchEngine().slices(_lonely_atom(), SETUP)
    narrow = TorchEngine().patterns(slices, thickness, replace(SETUP, detector_pixels=(64, 64)))
    wide = TorchEngine().patterns(slices, thickness, replace(SETUP, detector_pixels=(80, 70)))
    assert torch.equal(wide[:, :, 8:72, 3:67], narrow)
    assert float(wide.sum()) == pytest.approx(float(narrow.sum()), rel=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
def test_the_gpu_gives_the_patterns_of_the_cpu() -> None:
    slices, thickness = TorchEngine().slices(random_atoms(60, BOX, seed=1), SETUP)
    found = TorchEngine("cuda").patterns(slices, thickness, SETUP)
    assert relative(found, TorchEngine().patterns(slices, thickness, SETUP)) < 1e-5
