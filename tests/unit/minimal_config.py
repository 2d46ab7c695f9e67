"""The shortest sound configuration, for tests that must not change when a shipped file is tuned."""

from __future__ import annotations

MINIMAL = """\
run:
  folder: out
specimen:
  box_angstrom: 24.0
  thickness_angstrom: [20, 20]
microscope:
  energy_kev: 100
  semiangle_mrad: 20.0
scan:
  positions: [8, 8]
  step_angstrom: 2.0
detector:
  pixels: [48, 48]
  dk_per_angstrom: 0.0416666666666667
simulation:
  pixel_angstrom: 0.25
  slice_angstrom: 2.0
  samples: 10
held_out:
  pixel_angstrom: 0.1875
  slice_angstrom: 1.0
target:
  pixel_angstrom: 0.5
  blur_sigma_angstrom: 0.35
network:
  name: scanfield
  back_projection:
    pixel_angstrom: 0.3333333333333333
train:
  steps: 10
"""
