"""Checks of the grids: whole pixels, the anti-alias cutoff against aperture and detector, the detector's own pixel."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stemdl.config import Config
from stemdl.config.network import ScanField
from stemdl.physics.constants import wavelength_angstrom
from stemdl.preflight.findings import Finding, judge
from stemdl.preflight.optics import detector_edge_per_angstrom, mrad_of, probe_radius_angstrom

WHOLE_TOLERANCE = 1e-6
LARGEST_SIDE = 16384  # pixels of a grid or detector, positions of a scan
_ZEROS_SHARE = 0.05  # corners of the detector that record zeros
_MASKED_SHARE = 0.5  # of the detector that the coarse model of the back-projection does not see


def is_whole(value: float) -> bool:
    """Whether a ratio is a whole number of at least 1, up to what a decimal fraction in a file loses."""
    return round(value) >= 1 and abs(value - round(value)) <= WHOLE_TOLERANCE * max(1.0, value)


def neighbours(length: float, part: float) -> str:
    """The two nearest pixels that divide `length` into a whole number which the FFT likes, in words."""
    lower = next(size for size in range(max(1, math.floor(length / part)), 0, -1) if _largest_prime(size) <= 7)
    upper = _quick_size(lower + 1)
    return f"{length / lower:.10g} ({lower} pixels) or {length / upper:.10g} ({upper} pixels)"


def cutoff_per_angstrom(pixel_angstrom: float) -> float:
    """Highest spatial frequency in 1/Å on a grid: 2/3 of Nyquist (anti-alias aperture; Kirkland, section 6.8)."""
    return 1 / (3 * pixel_angstrom)


def grids(config: Config) -> Iterator[tuple[str, float]]:
    """(section, pixel in Å) of every grid that a wave is propagated on."""
    yield "simulation", config.simulation.pixel_angstrom
    yield "held_out", config.held_out.pixel_angstrom
    if isinstance(config.network, ScanField):
        yield "network.back_projection", config.network.back_projection.pixel_angstrom


def check_sizes(config: Config) -> list[Finding]:
    """Grids too large to be meant, which no other check could count through: a slip of a decimal point or of a unit."""
    box, field = config.specimen.box_angstrom, max(config.scan.field_angstrom)
    sides = [(f"{section}.pixel_angstrom", box / pixel) for section, pixel in grids(config)]
    sides += [("target.pixel_angstrom", max(box, field) / config.target.pixel_angstrom)]
    sides += [("detector.pixels", max(config.detector.pixels)), ("scan.positions", max(config.scan.positions))]
    right = f"at most {LARGEST_SIDE}"
    return [
        Finding("error", "sizes", f"{side:.4g} on a side", right, key) for key, side in sides if side > LARGEST_SIDE
    ]


def check_grids(config: Config) -> list[Finding]:
    """For each grid: whole pixels in the box, a quick size for the FFT, aperture and detector below the cutoff."""
    findings = []
    for section, pixel in grids(config):
        findings += [_whole_pixels(config, section, pixel), _aperture(config, section, pixel)]
        findings.append(_detector_extent(config, section, pixel))
    return findings


def check_apertures(config: Config) -> list[Finding]:
    """For each grid: the aperture below the cutoff."""
    return [_aperture(config, section, pixel) for section, pixel in grids(config)]


def check_detector(config: Config) -> list[Finding]:
    """The detector's pixel against the box's reciprocal grid, the bright field and the probe."""
    return [_detector_pixel(config), *check_patterns(config)]


def check_patterns(config: Config) -> list[Finding]:
    """The detector against the bright field and the probe."""
    return [_bright_field(config), _pattern_sampling(config)]


def _label(section: str) -> str:
    return section.rpartition(".")[2].replace("_", "-")


def _whole_pixels(config: Config, section: str, pixel: float) -> Finding:
    box, name, key = config.specimen.box_angstrom, f"{_label(section)}: pixels", f"{section}.pixel_angstrom"
    count = box / pixel
    found = f"a box of {box:g} Å in pixels of {pixel:.10g} Å: {count:.10g} pixels"
    if not is_whole(count):
        return Finding("error", name, found, f"a whole number of pixels: {neighbours(box, pixel)}", key)
    pixels = round(count)
    quick = _quick_size(pixels)
    right = f"a size without large prime factors, which the FFT likes: {box / quick:.10g} ({quick} pixels)"
    return judge(quick != pixels, "warning", name, f"{pixels} x {pixels} pixels of {pixel:.6g} Å", right, key)


def _quick_size(pixels: int) -> int:
    """Smallest size of at least `pixels` without prime factors above 7."""
    return next(size for size in range(pixels, 2 * pixels + 1) if _largest_prime(size) <= 7)


def _largest_prime(number: int) -> int:
    largest, factor = 1, 2
    while number > 1:
        if number % factor == 0:
            largest, number = factor, number // factor
        else:
            factor += 1
    return largest


def _aperture(config: Config, section: str, pixel: float) -> Finding:
    cutoff = mrad_of(config, cutoff_per_angstrom(pixel))
    alpha = config.microscope.semiangle_mrad
    found = f"aperture {alpha:g} mrad, the grid carries {cutoff:.4g} mrad (2/3 of Nyquist)"
    wavelength = wavelength_angstrom(config.microscope.energy_kev)
    right = f"pixels below {wavelength / (3e-3 * alpha):.4g} Å: beyond the cutoff the probe's electrons are lost"
    name, key = f"{_label(section)}: aperture", f"{section}.pixel_angstrom"
    return judge(alpha >= cutoff, "error", name, found, right, key, alpha / cutoff - 1)


def _detector_extent(config: Config, section: str, pixel: float) -> Finding:
    """What lies beyond the grid's cutoff records zeros: an edge more than one detector pixel beyond is an error.

    The back-projection may be coarse on purpose: it masks what its grid does not carry.
    """
    edge, cutoff = detector_edge_per_angstrom(config), cutoff_per_angstrom(pixel)
    name, key, share = f"{_label(section)}: detector", f"{section}.pixel_angstrom", _share_beyond(config, cutoff)
    found = f"the detector ends at {mrad_of(config, edge):.4g} mrad, the grid at {mrad_of(config, cutoff):.4g} mrad"
    if share > 0:
        found += f" ({share:.1%} of the detector's pixels lie beyond)"
    fitting = 2 * int(cutoff / config.detector.dk_per_angstrom + WHOLE_TOLERANCE)
    right = f"pixels of at most {1 / (3 * edge):.4g} Å, or a detector of {fitting} pixels"
    if section == "network.back_projection":
        return judge(share > _MASKED_SHARE, "warning", name, found, f"{right}: the rest is masked", key)
    if edge > min(cutoff + config.detector.dk_per_angstrom, 1 / (2 * pixel)) * (1 + WHOLE_TOLERANCE):
        return Finding("error", name, found, f"{right}: the rest would record zeros", key)
    right = f"pixels of {1 / (3 * math.sqrt(2) * edge):.4g} Å carry the corners too: they record zeros as it is"
    return judge(share > _ZEROS_SHARE, "warning", name, found, right, key)


def _share_beyond(config: Config, cutoff: float) -> float:
    """Share of the detector's pixels whose centre lies beyond `cutoff` (1/Å)."""
    limit = (cutoff / config.detector.dk_per_angstrom) ** 2 * (1 + WHOLE_TOLERANCE)
    rows, columns = config.detector.pixels
    inside = 0
    for row in range(rows):
        left = limit - (row - rows // 2) ** 2
        reach = math.isqrt(int(left)) if left >= 0 else -1
        inside += max(0, min(columns - 1 - columns // 2, reach) + min(columns // 2, reach) + 1)
    return 1 - inside / (rows * columns)


def _detector_pixel(config: Config) -> Finding:
    """Patterns are taken from the reciprocal grid of the box and binned: a pixel is a whole multiple of 1/box."""
    box, dk = config.specimen.box_angstrom, config.detector.dk_per_angstrom
    binning = dk * box
    found = f"detector pixels of {dk:.10g} 1/Å, {binning:.8g} steps of 1/{box:g} Å"
    below, above = max(1, math.floor(binning)), max(1, math.floor(binning)) + 1
    right = f"a whole number of steps: {below / box:.16g} ({below}) or {above / box:.16g} ({above})"
    return judge(not is_whole(binning), "error", "detector pixel", found, right, "detector.dk_per_angstrom")


def _bright_field(config: Config) -> Finding:
    edge = mrad_of(config, min(config.detector.pixels) / 2 * config.detector.dk_per_angstrom)
    alpha = config.microscope.semiangle_mrad
    found = f"the bright field ends at {alpha:g} mrad, the detector at {edge:.4g} mrad"
    right = "a detector that holds the bright-field disc: more pixels, or wider ones"
    return judge(edge < alpha, "warning", "bright field", found, right, "detector.pixels", alpha / edge - 1)


def _pattern_sampling(config: Config) -> Finding:
    """A detector pixel of dk sees real space repeat every 1/dk: the probe must be smaller than that."""
    window, width = 1 / config.detector.dk_per_angstrom, 2 * probe_radius_angstrom(config)
    found = f"detector pixels resolve {window:.4g} Å in real space, the probe is {width:.3g} Å across"
    right = f"detector pixels of at most {1 / width:.4g} 1/Å, so that interference inside the discs is resolved"
    key = "detector.dk_per_angstrom"
    return judge(window < width, "warning", "pattern sampling", found, right, key, width / window - 1)
