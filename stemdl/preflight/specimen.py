"""Checks of slices and thickness, and of the window that the target covers."""

from __future__ import annotations

import math

from stemdl.config import Config
from stemdl.config.network import ScanField
from stemdl.physics.constants import wavelength_angstrom
from stemdl.preflight.findings import Finding, judge
from stemdl.preflight.optics import detector_edge_per_angstrom
from stemdl.preflight.sampling import is_whole

THICKEST_SLICE_ANGSTROM = 2.0
HELD_OUT_SLICE_ANGSTROM = 1.0


def check_slices(config: Config) -> list[Finding]:
    """Slices no thicker than atomic planes are apart, a whole number of them in every specimen."""
    findings = [
        _planes("simulation", config.simulation.slice_angstrom, THICKEST_SLICE_ANGSTROM),
        _planes("held_out", config.held_out.slice_angstrom, HELD_OUT_SLICE_ANGSTROM),
        _thickness(config),
        _held_out_slices(config),
        _finer(config),
    ]
    return [*findings, *check_coarse_slices(config)]


def check_target(config: Config) -> list[Finding]:
    """The window of the target inside the box, on whole pixels, sampled finely enough for its resolution."""
    box, pixel, blur = config.specimen.box_angstrom, config.target.pixel_angstrom, config.target.blur_sigma_angstrom
    rows, columns = config.scan.field_angstrom
    step = config.scan.step_angstrom
    found = f"a field of {rows:g} x {columns:g} Å (positions times step) in a box of {box:g} Å"
    right = f"a box of at least {max(rows, columns):g} Å, or a smaller scan"
    findings = [judge(max(rows, columns) > box, "error", "field in the box", found, right, "specimen.box_angstrom")]
    counts = (rows / pixel, columns / pixel, box / pixel)
    found = f"target pixels of {pixel:.6g} Å: a field of {counts[0]:.8g} x {counts[1]:.8g}, a box of {counts[2]:.8g}"
    bad = not all(is_whole(count) for count in counts)
    sizes = _dividing_pixels(config)
    right = f"whole numbers of pixels in step, field and box: {' or '.join(f'{size:.10g}' for size in sizes)}"
    key = "target.pixel_angstrom"
    if not sizes:
        right = f"a box that some fraction of the step divides, such as {round(box / step) * step:g} Å"
        key = "specimen.box_angstrom"
    findings.append(judge(bad, "error", "target pixels", found, right, key))
    found = f"a resolution of σ {blur:g} Å on pixels of {pixel:.4g} Å"
    right = f"σ of at least half a pixel, {pixel / 2:.3g} Å: finer detail is lost between the pixels"
    return [*findings, judge(blur < pixel / 2, "warning", "target blur", found, right, "target.blur_sigma_angstrom")]


def _dividing_pixels(config: Config) -> list[float]:
    """The nearest pixels below and above the one chosen that divide the step and the box into whole numbers."""
    step, pixel, box = config.scan.step_angstrom, config.target.pixel_angstrom, config.specimen.box_angstrom
    factor = max(1, math.ceil(step / pixel))
    sizes = [step / count for count in range(1, 4 * factor + 1) if is_whole(box * count / step)]
    smaller, larger = [size for size in sizes if size < pixel], [size for size in sizes if size >= pixel]
    return [*larger[-1:], *smaller[:1]]


def _planes(section: str, thickness: float, limit: float) -> Finding:
    found = f"slices of {thickness:g} Å; atomic planes are 1.2 to 3 Å apart"
    why = "the test must be finer than what the network looks through" if section == "held_out" else "planes stay apart"
    right = f"at most {limit:g} Å, so that {why}"
    key = f"{section}.slice_angstrom"
    return judge(thickness > limit * (1 + 1e-9), "warning", f"{section.replace('_', '-')}: slices", found, right, key)


def _thickness(config: Config) -> Finding:
    """Specimens are made of whole slices of the training set: a thickness between is rounded."""
    low, high = config.specimen.thickness_angstrom
    slab = config.simulation.slice_angstrom
    found = f"{_span(low, high)}, in slices of {slab:g} Å: {_counts(low / slab, high / slab)} slices"
    first, last = _rounded_thickness(config)
    right = f"whole slices, such as [{first:g}, {last:g}], to which it is rounded as it is"
    bad = not (is_whole(low / slab) and is_whole(high / slab))
    return judge(bad, "warning", "thickness", found, right, "specimen.thickness_angstrom")


def _held_out_slices(config: Config) -> Finding:
    """The held-out slices fill every thickness there is."""
    slab, fine = config.simulation.slice_angstrom, config.held_out.slice_angstrom
    low, high = _rounded_thickness(config)
    found = f"{_span(low, high)}, in held-out slices of {fine:g} Å: {_counts(low / fine, high / fine)} slices"
    bad = not (is_whole(low / fine) and is_whole(high / fine) and (low == high or is_whole(slab / fine)))
    length = low if low == high else slab
    right = f"slices that fill it, such as {length / math.ceil(length / fine):.6g} Å: they are stretched as it is"
    return judge(bad, "warning", "held-out: thickness", found, right, "held_out.slice_angstrom")


def _rounded_thickness(config: Config) -> tuple[float, float]:
    """Thinnest and thickest specimen in Å."""
    from data_gen.worklist import thickness_in_slices  # brings the crystals along: only when it is asked for

    slab = config.simulation.slice_angstrom
    first, last = thickness_in_slices(config)
    return first * slab, last * slab


def _span(low: float, high: float) -> str:
    return f"{low:g} Å" if low == high else f"{low:g} to {high:g} Å"


def _counts(low: float, high: float) -> str:
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _finer(config: Config) -> Finding:
    train, test = config.simulation, config.held_out
    found = (
        f"held-out fields with slices of {test.slice_angstrom:g} Å and pixels of {test.pixel_angstrom:.4g} Å, "
        f"training with {train.slice_angstrom:g} Å and {train.pixel_angstrom:.4g} Å"
    )
    coarser = test.slice_angstrom > train.slice_angstrom or test.pixel_angstrom > train.pixel_angstrom
    right = "held-out fields at least as fine as the training set, or the test is easier than reality"
    return judge(coarser, "warning", "held-out sampling", found, right, "held_out.pixel_angstrom")


def check_coarse_slices(config: Config) -> list[Finding]:
    """The slices that `scanfield` looks through, nothing for another network.

    A slab is thin while the Fresnel phase π λ k² dz of its own thickness stays below π at the detector's edge.
    """
    if not isinstance(config.network, ScanField):
        return []
    slices = config.network.back_projection.slices
    thickness = config.specimen.thickness_angstrom[1] / slices
    edge = detector_edge_per_angstrom(config)
    limit = 1 / (wavelength_angstrom(config.microscope.energy_kev) * edge**2)
    plural = "" if slices == 1 else "s"
    found = f"{slices} slice{plural} of {thickness:.4g} Å; at the detector's edge a slab is thin up to {limit:.3g} Å"
    right = f"at least {math.ceil(config.specimen.thickness_angstrom[1] / limit)} slices"
    key, excess = "network.back_projection.slices", thickness / limit - 1
    return [judge(thickness > limit, "warning", "back-projection slices", found, right, key, excess)]
