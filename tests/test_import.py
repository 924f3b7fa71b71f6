"""The cost of an import."""

import subprocess
import sys


def test_importing_popart_loads_neither_torch_nor_jax() -> None:
    code = "import sys, popart; print(sorted({'torch', 'jax', 'jaxlib'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_numpy_users_never_load_them() -> None:
    code = (
        "import sys, numpy as np, popart; art = popart.Moments();"
        "state = art.update(art.init(), np.arange(4.0));"
        "popart.preserve(np.ones((1, 2)), np.zeros(1), art.affine(art.init()), art.affine(state));"
        "print(sorted({'torch', 'jax', 'jaxlib'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
