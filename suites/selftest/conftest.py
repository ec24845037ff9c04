"""One session for all tests of a process, apart from the record of the product suites."""

import pytest

from harness.pipeline import Options, Session
from harness.triage.killtable import try_one


def pytest_collection_modifyitems(items):
    for item in items:
        if "suites/selftest" in item.nodeid:
            item.extra_keyword_matches.add("faults")


@pytest.fixture(scope="session")
def try_fault(tmp_path_factory):
    """`try_fault(name)` -> what became of that fault, equivalent or faulty test."""
    folder = tmp_path_factory.mktemp("faults")
    with Session(folder, manifest={"door": "pytest"}, options=Options(jobs=1)) as session:
        yield lambda name: try_one(session, name)
        session.finish()
