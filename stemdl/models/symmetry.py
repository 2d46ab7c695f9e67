"""The symmetries of a scan: transposing and flipping scan, detector and potential together.

A mirrored specimen under a round probe gives mirrored patterns, so each of the eight operations of the square turns a
true field into another true field. Operation `s` (0 to 7) transposes if bit 0 is set, then flips y (bit 1) and x
(bit 2).
"""

from __future__ import annotations

import torch

from stemdl.config import Config

IDENTITY = 0
HALF_TURN = 6


def symmetries(config: Config) -> tuple[int, ...]:
    """Operations that leave the probe, the shape of the scan and that of the detector as they are.

    All eight of a round probe; none that transposes where scan or detector is oblong; a two-fold astigmatism leaves the
    identity and the half turn. Where astigmatism is drawn, one set of operations serves all samples: that of an
    astigmatic probe, if any sample may have one.
    """
    drawn = config.vary.astigmatism_angstrom
    magnitudes = (config.microscope.astigmatism_angstrom,) if drawn is None else drawn.limits
    if any(magnitude != 0 for magnitude in magnitudes):
        return (IDENTITY, HALF_TURN)
    square = all(shape[0] == shape[1] for shape in (config.scan.positions, config.detector.pixels))
    return tuple(operation for operation in range(8) if square or not operation & 1)


def apply_to_picture(picture: torch.Tensor, operation: int) -> torch.Tensor:
    """(..., y, x) picture under an operation; with a transposition the two sizes change places."""
    if operation & 1:
        picture = picture.transpose(-2, -1)
    axes = [axis for axis, bit in ((-2, 2), (-1, 4)) if operation & bit]
    return picture.flip(axes) if axes else picture


def undo_on_picture(picture: torch.Tensor, operation: int) -> torch.Tensor:
    """The inverse of `apply_to_picture`."""
    axes = [axis for axis, bit in ((-2, 2), (-1, 4)) if operation & bit]
    picture = picture.flip(axes) if axes else picture
    return picture.transpose(-2, -1) if operation & 1 else picture


def apply_to_patterns(amplitude: torch.Tensor, operation: int) -> torch.Tensor:
    """(..., sy, sx, qy, qx) patterns under an operation.

    The unscattered beam is in pixel n // 2 before and after: on an even detector a flip alone would move it by one. Its
    first row or column, whose mirror image was not recorded, then stays where it is.
    """
    if operation & 1:
        amplitude = amplitude.transpose(-4, -3).transpose(-2, -1)
    for scan_axis, axis, bit in ((-4, -2, 2), (-3, -1, 4)):
        if operation & bit:
            amplitude = amplitude.flip([scan_axis, axis])
            if amplitude.shape[axis] % 2 == 0:
                amplitude = amplitude.roll(1, dims=axis)
    return amplitude
