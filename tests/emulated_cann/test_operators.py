"""The emulated operators give what MindSpore's CPU gives."""

import json
import re
from pathlib import Path

import launch
import numpy as np
import pytest

REASON = launch.why_not()
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

SCRIPT = Path(__file__).with_name("operator_cases.py")
NAMES = list(dict.fromkeys(re.findall(r'^ +"([^"]+)": (?=\(|values|bool)', SCRIPT.read_text(), re.MULTILINE)))


@pytest.fixture(scope="module")
def results():
    found = {}
    for device in ("CPU", "Ascend"):
        process = launch.run_alone(SCRIPT, device)
        lines = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
        assert len(lines) == 1, f"{device}: {process.stdout[-2000:]}\n{process.stderr[-3000:]}"
        found[device] = json.loads(lines[0].removeprefix("RESULT "))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_and_its_gradients_equal_those_on_the_cpu(results, name):
    expected, found = results["CPU"][name], results["Ascend"][name]
    if not isinstance(expected, list):
        assert found == expected
        return
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(np.array(other), np.array(one), rtol=2e-5, atol=1e-6)
