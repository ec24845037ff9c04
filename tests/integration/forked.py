"""A run, in a fork of this process, with a fault of a test's own in it."""

import multiprocessing
import os
import time
import warnings
from dataclasses import replace

import torch

from harness.core.runfiles import read_run
from harness.faults import FAULTS
from harness.launch.request import LaunchRequest
from harness.launch.worker import run_request


def run_with(folder, fault, setting, workload):
    """The run of `setting`, cold, with `fault`, which the catalogue of this process lacks."""
    request = LaunchRequest(
        run_id="faulty",
        setting=replace(setting, faults=(fault.name,)),
        workload=workload,
        num_threads=1,
        launched_at=time.time(),
        warm=False,
    )

    def child():
        env = {name: value for name, value in setting.engine_env().items() if value is not None}
        os.environ.update(env)
        FAULTS.register(fault.name, fault)
        run_request(folder, request)

    torch.set_num_threads(1)
    process = multiprocessing.get_context("fork").Process(target=child)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    process.join()
    return replace(read_run(folder), setting=setting)
