"""Tests of the local runtime, and the contract that every runtime keeps."""

import pytest

# Its name does not say that it holds tests, and without this an assertion of it would fail without its values.
pytest.register_assert_rewrite("tests.integration.runtime.contract")
