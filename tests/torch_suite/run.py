"""Run PyTorch's distributed tests on one backend: -m tests.torch_suite.run [PART OF A NAME..].

The environment says which: see ``outcomes_of`` in __main__.
"""

import json
import sys
import unittest

from tests.torch_suite.cases import RecordedResult, TorchSuite

if __name__ == "__main__":
    result = RecordedResult()
    for name in unittest.TestLoader().getTestCaseNames(TorchSuite):
        if len(sys.argv) == 1 or any(part in name for part in sys.argv[1:]):
            TorchSuite(name).run(result)
            outcome, why = result.outcomes[name]
            print(json.dumps({"test": name, "outcome": outcome, "why": why}), flush=True)
