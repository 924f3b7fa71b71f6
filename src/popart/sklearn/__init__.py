"""Pop-Art for scikit-learn: a regressor for targets of any size, and of a size that changes."""

try:
    import sklearn as _sklearn  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise
    raise ModuleNotFoundError(
        "popart.sklearn needs scikit-learn, which is not installed: pip install 'popart-learn[sklearn]'",
        name="sklearn",
    ) from error

from popart._installation import check_installation
from popart.sklearn.regressor import PopArtRegressor

check_installation()

__all__ = ["PopArtRegressor"]
