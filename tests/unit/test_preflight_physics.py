"""The pre-flight on crystals, and its figures against the physics they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stemdl.physics.detector import to_detector
from stemdl.physics.grid import Grid
from stemdl.physics.multislice import propagator
from stemdl.physics.probe import Optics, probes
from stemdl.preflight.crystals import check_crystals
from stemdl.preflight.optics import probe_radius_angstrom
from stemdl.preflight.sampling import check_grids, cutoff_per_angstrom
from test_preflight import PIXEL, bad, config_with


class TestCrystals:
    def test_unknown_names_get_their_neighbours(self) -> None:
        config = config_with("crystals.include=[Si-diamnd, Fe]", "crystals.exclude=[MgO-rock]")
        findings = bad(check_crystals(config))
        assert [(f.severity, f.key) for f in findings] == [
            ("error", "crystals.include"),
            ("error", "crystals.include"),
            ("error", "crystals.exclude"),
        ]
        assert "Si-diamond" in findings[0].right
        assert "Fe-bcc" in findings[1].right
        assert "MgO-rocksalt" in findings[2].right

    def test_too_few_materials(self) -> None:
        finding = bad(check_crystals(config_with("crystals.include=[Si-diamond, C-diamond]")))[0]
        assert (finding.severity, finding.key) == ("error", "crystals.include")
        config = config_with("crystals.include=[Si-diamond, Al-fcc, Fe-bcc]", "crystals.held_out_fraction=0.9")
        assert ("error", "crystals.held_out_fraction") in [(f.severity, f.key) for f in check_crystals(config)]

    def test_missing_and_empty_folder(self, tmp_path: Path) -> None:
        finding = bad(check_crystals(config_with(f"crystals.cif_folders=[{tmp_path / 'none'}]")))[0]
        assert (finding.severity, finding.key) == ("error", "crystals.cif_folders")
        assert str(tmp_path / "none") in finding.found
        finding = bad(check_crystals(config_with(f"crystals.cif_folders=[{tmp_path}]")))[0]
        assert (finding.severity, finding.key) == ("error", "crystals.cif_folders")

    def test_broken_files_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "broken.cif").write_text("data_x\n_cell_length_a 0\n")
        finding = bad(check_crystals(config_with(f"crystals.cif_folders=[{tmp_path}]")))[0]
        assert finding.severity == "warning"
        assert "broken" in finding.found

    def test_fewer_samples_than_materials(self) -> None:
        findings = bad(check_crystals(config_with("simulation.samples=20", "crystals.include=[]")))
        assert [(f.check, f.key) for f in findings] == [("samples a material", "simulation.samples")]


class TestPhysics:
    """The rules against the physics they stand for."""

    def test_cutoff(self) -> None:
        assert cutoff_per_angstrom(0.25) == pytest.approx(Grid(96, 24.0).cutoff_per_angstrom)

    def test_pixels_called_lost_record_zeros(self) -> None:
        config = config_with(f"{PIXEL}=0.375", "detector.pixels=[48, 48]")  # 64 pixels, the cutoff inside the detector
        finding = next(f for f in check_grids(config) if f.check == "simulation: detector")
        carried = to_detector(Grid.from_pixel(24.0, 0.375).antialias()[None], (48, 48)).squeeze(0)
        share = float((carried == 0).double().mean())
        assert finding.severity == "error"
        assert f"({share:.1%} of the detector's pixels lie beyond)" in finding.found

    @pytest.mark.parametrize("defocus", [-120.0, 0.0, 80.0, 240.0])
    def test_probe_radius_holds_the_probe(self, defocus: float) -> None:
        config = config_with(f"microscope.defocus_angstrom={defocus}")
        radius = probe_radius_angstrom(config)
        grid = Grid(192, 48.0)
        optics = Optics(energy_kev=100.0, semiangle_mrad=20.0, defocus_angstrom=defocus)
        waves = probes(optics, grid, torch.tensor([[24.0, 24.0]]))
        behind = torch.fft.ifft2(torch.fft.fft2(waves) * propagator(optics, grid, 20.0))
        axis = (torch.arange(192) * 0.25 - 24.0).double()
        distance = torch.hypot(axis[:, None], axis[None, :])
        shares = []
        for wave in (waves[0], behind[0]):
            density = wave.abs().square().double()
            shares.append(float(density[distance <= radius].sum() / density.sum()))
        assert min(shares) > 0.9
        assert max(shares) < 0.999  # and not far beyond it

    def test_wider_surface_counts(self) -> None:
        over = probe_radius_angstrom(config_with("microscope.defocus_angstrom=80"))
        under = probe_radius_angstrom(config_with("microscope.defocus_angstrom=-80"))
        assert over == pytest.approx(80 * 0.02 + 0.037014 / 0.02, rel=1e-4)
        assert under - over == pytest.approx(20 * 0.02)  # it spreads on through 20 Å of specimen

    def test_scherzer_defocus_counters_c3(self) -> None:
        c3, alpha = 1e5, 0.02
        balanced = config_with(f"microscope.c3_angstrom={c3}", f"microscope.defocus_angstrom={0.75 * c3 * alpha**2}")
        focused = config_with(f"microscope.c3_angstrom={c3}", "microscope.defocus_angstrom=0")
        assert probe_radius_angstrom(balanced) < probe_radius_angstrom(focused)
