"""Which versions of what a result was made with."""

from __future__ import annotations

import importlib.metadata
import platform

PACKAGES = ("torch", "numpy", "h5py", "abtem", "ase", "pydantic", "PyYAML", "rich", "matplotlib", "mpi4py", "mpich")


def installed_versions() -> dict[str, str]:
    """Versions of Python, of the platform, of stemdl and of every package that a result depends on; no imports.

    A package that is not installed is left out.
    """
    from stemdl import __version__

    versions = {"python": platform.python_version(), "platform": platform.platform(), "stemdl": __version__}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
