"""The whole configuration: one YAML file."""

from __future__ import annotations

from pydantic import Field

from stemdl.config.base import FilePath, Section
from stemdl.config.comm import Comm
from stemdl.config.instrument import Detector, Microscope, Scan
from stemdl.config.network import Network, Reconstruct, Report, Train
from stemdl.config.simulation import Crystals, HeldOut, Simulation, SpecimenSection, Target
from stemdl.config.storage import BurstBuffer
from stemdl.config.variation import Vary


class Run(Section):
    """Where a run is kept and what it starts from."""

    folder: FilePath
    """Folder of everything this run writes; relative paths start at this YAML file."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """The one seed from which every random number follows."""


class Config(Section):
    """Everything that says what runs; with the launcher's environment there is nothing else."""

    run: Run
    """Where the run is kept, and its seed."""
    crystals: Crystals = Crystals()
    """Crystals to learn from and to be tested on."""
    specimen: SpecimenSection
    """How specimens are cut from crystals."""
    microscope: Microscope
    """Beam and lenses."""
    scan: Scan
    """Probe positions."""
    detector: Detector
    """Pixelated detector."""
    vary: Vary = Vary()
    """Quantities drawn for every sample."""
    simulation: Simulation
    """The training set."""
    held_out: HeldOut
    """The test set: unseen materials, simulated finer."""
    target: Target
    """The potential to predict."""
    network: Network
    """The network."""
    train: Train
    """Its optimisation."""
    comm: Comm = Comm()
    """Its gradients between ranks."""
    reconstruct: Reconstruct = Reconstruct()
    """Its application."""
    burst_buffer: BurstBuffer = BurstBuffer()
    """Fast storage of each node."""
    report: Report = Report()
    """The page that shows the run."""
