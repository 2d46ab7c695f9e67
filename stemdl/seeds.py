"""Purposes of random numbers: every draw follows from SeedSequence([seed, purpose, item, ...])."""

from __future__ import annotations

from enum import IntEnum


class Purpose(IntEnum):
    """What a random number is for. The values are part of the format: never change or reuse one."""

    SPLIT = 1
    TRAIN_SPECIMEN = 2
    HELD_OUT_SPECIMEN = 3
    TRAIN_THICKNESS = 4
    HELD_OUT_THICKNESS = 5
    TRAIN_PHONONS = 6
    HELD_OUT_PHONONS = 7
    TRAIN_DOSE = 8
    HELD_OUT_DOSE = 9
    VALIDATION_SPLIT = 10
    INITIAL_WEIGHTS = 11
    BATCH_ORDER = 12
    AUGMENTATION = 13
    DROPOUT = 14
    HARD_FIELDS = 15
    TRAIN_PARAMETERS = 16
    HELD_OUT_PARAMETERS = 17
    TRAIN_SCAN_NOISE = 18
    HELD_OUT_SCAN_NOISE = 19
    TRAIN_DETECTOR = 20
    HELD_OUT_DETECTOR = 21
    CBED_SPECIMEN = 40
    CBED_PHONONS = 41
