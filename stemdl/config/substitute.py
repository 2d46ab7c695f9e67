"""The configuration of one sample: drawn values in the place of those that they vary."""

from __future__ import annotations

from collections.abc import Mapping

from stemdl.config.root import Config
from stemdl.config.variation import SECTION_OF, Vary

STORED_AS: Mapping[str, str] = {"step_angstrom": "scan_step_angstrom"}
"""Names of the parameters stored with a sample where they are others than those of the keys in `vary`."""

_KEY_OF = {name: name for name in SECTION_OF} | {stored: name for name, stored in STORED_AS.items()}


def with_values(config: Config, values: Mapping[str, float]) -> Config:
    """The configuration with `values` (keys as in `vary`) in the sections they belong to, and nothing left to vary.

    Names that are no such keys are left alone, so the parameters stored with a sample may be given as they are. Every
    function that takes a configuration then works for one sample. Limits of the sections are not checked again: the
    ends of every range are within them.
    """
    sections: dict[str, dict[str, float]] = {}
    for given, value in values.items():
        name = _KEY_OF.get(given)
        if name is not None:
            sections.setdefault(SECTION_OF[name], {})[name] = value
    update: dict[str, object] = {
        section: getattr(config, section).model_copy(update=changed) for section, changed in sections.items()
    }
    return config.model_copy(update={**update, "vary": Vary()})
