"""A check that no other distribution has overwritten this package.

PyPI has an unrelated, empty distribution called `popart`. Its `popart/__init__.py` replaces ours when it is
installed, and takes ours away when it is removed. The other modules of this package survive that: those that
users import by name check it.
"""

from importlib import metadata

import popart

REPAIR = "pip uninstall popart popart-learn; pip install popart-learn"


def check_installation() -> None:
    """Raise ImportError if the package's own names are missing."""
    if hasattr(popart, "preserve"):
        return
    try:
        cause = f"the unrelated distribution popart {metadata.version('popart')} is installed over it"
    except metadata.PackageNotFoundError:
        cause = "another distribution has overwritten or removed its __init__.py"
    place = next(iter(popart.__path__))
    raise ImportError(f"{place} is not as popart-learn installed it: {cause}. Repair it with: {REPAIR}")
