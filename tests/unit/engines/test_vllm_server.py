"""vLLM's server door without vLLM: flags, answers, last words, and the end of all it started."""

import argparse
import http.server
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.core import Logprobs
from harness.engines.base import EngineOutOfMemory, EngineRefused
from harness.engines.vllm import server, server_flags
from harness.engines.vllm.server import ServerDoor, completion_request, exchange, read_completion
from harness.engines.vllm.server_flags import as_flags
from harness.engines.vllm.server_output import read_failure
from harness.engines.vllm.server_process import ServerProcess, group_members, wait_for_end
from harness.settings import load_model, load_workload

WORKLOAD = load_workload("short", load_model("tiny-llama"))
PROMPTS = WORKLOAD.prompt_token_ids


def options():
    parser = argparse.ArgumentParser()
    for name in ("--enforce-eager", "--skip-tokenizer-init"):
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--disable-log-stats", action="store_true")
    parser.add_argument("--model", default="other")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--cpu-offload-gb", type=float, default=0)
    parser.add_argument("--offload-params", nargs="+", default=set())
    parser.add_argument("--compilation-config", type=json.loads, default={})
    parser.add_argument("--uds")
    return parser, options_of(parser)


ASKED = {
    "model": "/a b/tiny.v1",
    "max_model_len": 64,
    "cpu_offload_gb": 0.5,
    "enforce_eager": False,
    "skip_tokenizer_init": True,
    "disable_log_stats": False,
    "offload_params": ["gate_up_proj", "down_proj"],
    "compilation_config": {"mode": 0, "pass_config": {"fuse": False}},
}


def test_a_parser_reads_from_the_flags_what_the_keywords_said():
    parser, known = options()
    read = vars(parser.parse_args(as_flags(ASKED, known)))
    assert {name: read[name] for name in ASKED} == ASKED


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enforce_eager": False}, ["--no-enforce-eager"]),
        ({"offload_params": ["a", "b"]}, ["--offload-params", "a", "b"]),
        ({"hf_overrides": {"a": None}}, ['--hf-overrides={"a": null}']),
        ({"max_model_len": None}, []),
    ],
)
def test_without_a_parser_flags_follow_the_usual_form(value, flags):
    assert as_flags(value, None) == flags


def test_none_is_said_where_it_is_not_the_default():
    assert as_flags({"model": None, "max_model_len": None}, options()[1]) == ["--model=None"]


def test_an_argument_that_the_server_does_not_have_is_refused_by_name():
    with pytest.raises(EngineRefused, match=r"'max_model_length' \(given max_model_length=64\)"):
        as_flags({"max_model_length": 64}, options()[1])


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        ({"enforce_eager": False}, ["--no-enforce-eager"]),
        ({"prefix": False}, ["--no-prefix"]),
        ({"disable_log_stats": True}, ["--disable-log-stats"]),
        ({"disable_log_stats": False}, []),
        ({"kept": False}, ["--kept"]),
        ({"kept": True}, []),
        ({"token": True}, ["--token"]),
    ],
)
def test_a_switch_that_is_off_is_said_where_leaving_it_out_would_not_do(asked, flags):
    parser = with_switches()
    assert as_flags(asked, options_of(parser)) == flags
    ((name, value),) = asked.items()
    assert value is vars(parser.parse_args(flags))[name]


@pytest.mark.parametrize("name", ["unset", "token"])
def test_a_switch_that_the_server_cannot_turn_off_is_refused(name):
    parser = with_switches()
    with pytest.raises(EngineRefused, match=rf"{name}=False: it has --{name}, which means True"):
        as_flags({name: False}, options_of(parser))


def with_switches():
    parser, _ = options()
    parser.add_argument("--prefix", action=argparse.BooleanOptionalAction)
    parser.add_argument("--kept", action="store_false")
    parser.add_argument("--unset", action="store_true", default=None)
    parser.add_argument("--token", nargs="?", const=True)
    return parser


def options_of(parser):
    return {text: action for action in parser._actions for text in action.option_strings}


def test_the_first_module_with_a_parser_tells_the_options(monkeypatch, tmp_path):
    (tmp_path / "moved_cli_args.py").write_text(
        "from argparse import ArgumentParser as FlexibleArgumentParser\n"
        "def make_arg_parser(parser):\n    parser.add_argument('--uds')\n    return parser\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(server_flags, "PARSERS", ("no_such_module", "json", "moved_cli_args"))
    assert "--uds" in server_flags.server_options()
    monkeypatch.setattr(server_flags, "PARSERS", ("no_such_module", "json"))
    assert server_flags.server_options() is None


def choice(index, tokens, rows=None, **more):
    table = None
    if rows is not None:
        table = {
            "tokens": [f"token_id:{t}" for t in tokens],
            "token_logprobs": [row[t] for row, t in zip(rows, tokens, strict=True)],
            "top_logprobs": [{f"token_id:{t}": v for t, v in row.items()} for row in rows],
        }
    return {
        "index": index,
        "token_ids": tokens,
        "prompt_token_ids": list(PROMPTS[index]),
        "logprobs": table,
        "finish_reason": "length",
        **more,
    }


def answer(*choices):
    return {"id": "cmpl-1", "choices": list(choices)}


def test_answers_come_in_the_order_of_the_prompts():
    found = read_completion(answer(choice(1, [7, 8]), choice(0, [5, 6])), WORKLOAD)
    assert [o.token_ids for o in found] == [(5, 6), (7, 8)]
    assert [o.prompt_token_ids for o in found] == list(PROMPTS)
    assert [o.request_id for o in found] == ["cmpl-1-0", "cmpl-1-1"]
    assert {o.finish_reason for o in found} == {"length"}
    assert {o.logprobs for o in found} == {None}


def test_log_probabilities_are_best_first_with_the_chosen_token_apart():
    rows = [{5: -2.0, 9: -0.5, 3: -1.0}, {6: -0.25, 1: -4.0}]
    first, _ = read_completion(answer(choice(0, [5, 6], rows), choice(1, [7])), WORKLOAD)
    assert first.logprobs == Logprobs(
        chosen=(-2.0, -0.25),
        top_token_ids=((9, 3, 5), (6, 1)),
        top=((-0.5, -1.0, -2.0), (-0.25, -4.0)),
    )


def test_a_release_without_token_ids_is_read_by_its_log_probabilities():
    rows = [{5: -2.0}, {6: -0.25}]
    found = read_completion(
        answer(choice(0, [5, 6], rows, token_ids=None), choice(1, [7], [{7: -1.0}])), WORKLOAD
    )
    assert found[0].token_ids == (5, 6)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ([choice(0, [5])], "2 prompts were sent, the server gave 1 answers"),
        ([choice(0, [5]), choice(0, [5])], "2 prompts were sent, the server gave 2 answers"),
        ([choice(0, [5], token_ids=None), choice(1, [5])], "neither token_ids nor logprobs"),
        (
            [choice(0, [5], [{5: -1.0}], token_ids=[6]), choice(1, [5])],
            r"says token_ids=\(6,\), its logprobs are of \(5,\)",
        ),
        (
            [choice(0, [5], prompt_token_ids=[1, 2]), choice(1, [5])],
            r"is for prompt_token_ids=\[1, 2\]",
        ),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error_that_says_how(choices, words):
    with pytest.raises(RuntimeError, match=words):
        read_completion(answer(*choices), WORKLOAD)


def test_a_token_that_is_not_named_by_its_id_is_an_error():
    wrong = choice(0, [5], [{5: -1.0}])
    wrong["logprobs"]["tokens"] = [" the"]
    with pytest.raises(RuntimeError, match="token=' the'"):
        read_completion(answer(wrong, choice(1, [5])), WORKLOAD)


def test_a_request_holds_every_prompt_and_says_all_that_the_checkpoint_could_decide():
    body = completion_request(WORKLOAD)
    assert body["prompt"] == [list(ids) for ids in PROMPTS]
    assert (body["max_tokens"], body["temperature"], body["logprobs"]) == (8, 0.0, 5)
    assert body["ignore_eos"] is body["return_token_ids"] is True
    assert body["repetition_penalty"] == 1.0


CONFIG_ERROR = """\
(APIServer pid=12) Traceback (most recent call last):
(APIServer pid=12)   File "/v/entry.py", line 232, in main
(APIServer pid=12)     uvloop.run(run_server(args))
(APIServer pid=12)            ^^^^^^^^
(APIServer pid=12)   File "/v/arg_utils.py", line 2240, in create_engine_config
(APIServer pid=12)     model_config = self.create_model_config()
(APIServer pid=12) ValueError: 1 validation error for ModelConfig
(APIServer pid=12)   Value error, max_model_len (9) is
(APIServer pid=12) too long [type=value_error, input_value=ArgsKwargs((), {}), input_type=X]
(APIServer pid=12)     For further information visit https://e.invalid/v/value_error
"""
LATER_NOISE = """\
nanobind: leaked 4 instances!
 - leaked instance 0x7f of type "x"
"""
CORE_ERROR = """\
(APIServer pid=1) WARNING 11-29 21:56:37 [base.py:380] Traceback (most recent call last):
(APIServer pid=1) WARNING 11-29 21:56:37 [base.py:380]   File "/v/base.py", line 1, in warmup
(APIServer pid=1) WARNING 11-29 21:56:37 [base.py:380] ValueError: no template
(Worker pid=3) ERROR 11-29 21:58:35 [ex.py:953] WorkerProc failed to start.
(Worker pid=3) ERROR 11-29 21:58:35 [ex.py:953] Traceback (most recent call last):
(Worker pid=3) ERROR 11-29 21:58:35 [ex.py:953]   File "/v/prefetch.py", line 429, in __init__
(EngineCore pid=2) INFO 11-29 21:58:35 [ex.py:479] waiting
(Worker pid=3) ERROR 11-29 21:58:35 [ex.py:953]     assert self.device != cpu, (
(Worker pid=3) ERROR 11-29 21:58:35 [ex.py:953] {raised}
(EngineCore pid=2) ERROR 11-29 21:58:39 [core.py:15] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-29 21:58:39 [core.py:15]   File "/v/core.py", line 1, in run_core
(EngineCore pid=2) ERROR 11-29 21:58:39 [core.py:15] Exception: failed. See stack trace for root cause.
Traceback (most recent call last):
  File "/v/utils.py", line 1, in launch
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed: {{}}
"""  # noqa: E501


def test_a_refusal_by_the_configuration_is_told_without_furniture():
    text = CONFIG_ERROR.replace("is\n(APIServer pid=12) too", "is too") + LATER_NOISE
    failure = read_failure(text.splitlines())
    assert (failure.kind, failure.is_refusal) == ("ValueError", True)
    assert failure.reason == "max_model_len (9) is too long"


def test_the_same_error_outside_the_configuration_is_no_refusal():
    text = CONFIG_ERROR.replace("create_engine_config", "load_model")
    assert not read_failure(text.splitlines()).is_refusal


def test_an_error_that_is_no_refusal_is_none_in_the_configuration_either():
    text = CONFIG_ERROR.replace("ValueError: 1", "RuntimeError: 1")
    assert not read_failure(text.splitlines()).is_refusal


def test_the_cause_in_the_worker_counts_not_those_who_pass_it_on_nor_warnings():
    text = CORE_ERROR.format(raised="AssertionError: on CPU already")
    failure = read_failure(text.splitlines())
    assert (failure.kind, failure.reason) == ("AssertionError", "on CPU already")
    assert not failure.is_refusal
    assert not failure.is_out_of_memory


def test_out_of_memory_in_the_worker_is_told_from_a_crash():
    text = CORE_ERROR.format(raised="torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB")
    failure = read_failure(text.splitlines())
    assert failure.is_out_of_memory
    assert failure.reason == "CUDA out of memory. Tried 2 GiB"


def test_a_flag_that_the_parser_refuses_is_a_refusal():
    failure = read_failure(["usage: x", "api_server.py: error: unrecognized arguments: --a=3"])
    assert failure.is_refusal
    assert failure.reason == "unrecognized arguments: --a=3"


def test_output_without_an_error_tells_no_failure():
    warned = CORE_ERROR.splitlines()[:3]
    assert read_failure(["INFO: all is well", *warned]) is None


class Endpoints(http.server.BaseHTTPRequestHandler):
    """Answers as the server's owner has set."""

    def address_string(self):
        return "fake"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.reply()

    def do_POST(self):
        self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def reply(self, body=None):
        self.server.seen.append((self.path, body))
        status, found = self.server.answers[self.path]
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@pytest.fixture(params=["unix", "port"])
def endpoints(request, tmp_path):
    if request.param == "unix":
        fake = UnixServer(os.fspath(tmp_path / "s"), Endpoints)
        fake.place = tmp_path / "s"
    else:
        fake = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoints)
        fake.place = fake.server_address[1]
    fake.seen, fake.answers = [], {}
    thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    fake.shutdown()
    thread.join()
    fake.server_close()


@pytest.fixture
def door(endpoints):
    """A door to the fake endpoints; its process is a sleeper."""
    made = ServerDoor.__new__(ServerDoor)
    made._address = endpoints.place
    made.process = FakeProcess()
    return made


class FakeProcess:
    """Has ended already, with these last words."""

    is_killed = False
    lines = ()

    def wait(self, timeout_s):
        return True

    def output(self):
        return list(self.lines)

    def describe_end(self):
        return "exit code 1"

    def end(self):
        pass


def test_exchange_gives_status_and_text(endpoints):
    endpoints.answers["/x"] = (503, {"a": 1})
    assert exchange(endpoints.place, "POST", "/x", {"b": 2}) == (503, '{"a": 1}')
    assert endpoints.seen == [("/x", {"b": 2})]


def test_generate_sends_one_request_and_reads_its_answer(door, endpoints):
    endpoints.answers["/v1/completions"] = (200, answer(choice(0, [5]), choice(1, [6])))
    assert [o.token_ids for o in door.generate(WORKLOAD)] == [(5,), (6,)]
    assert endpoints.seen == [("/v1/completions", completion_request(WORKLOAD))]


def test_rpc_gives_every_ranks_answer(door, endpoints):
    endpoints.answers["/collective_rpc"] = (200, {"results": [{"rank": 0}, {"rank": 1}]})
    assert door.rpc("harness_fault", ("a:b", "c")) == [{"rank": 0}, {"rank": 1}]
    assert endpoints.seen[0][1] == {"method": "harness_fault", "args": ["a:b", "c"]}


@pytest.mark.parametrize(
    "body", [{"error": {"message": "no such\nmethod"}}, {"detail": "no such method"}]
)
def test_a_failed_rpc_is_told_in_the_servers_words(door, endpoints, body):
    endpoints.answers["/collective_rpc"] = (500, body)
    with pytest.raises(RuntimeError, match="status 500: no such method"):
        door.rpc("nope", ())


def test_memory_that_runs_out_while_generating_is_out_of_memory(door, endpoints):
    endpoints.answers["/v1/completions"] = (500, {"error": {"message": "EngineDeadError"}})
    text = CORE_ERROR.format(raised="torch.OutOfMemoryError: CUDA out of memory.")
    door.process.lines = text.splitlines()
    with pytest.raises(EngineOutOfMemory, match="CUDA out of memory"):
        door.generate(WORKLOAD)


FAKE_SERVER = """
import http.server, os, socketserver, subprocess, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def address_string(self): return "fake"
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
path, = [a.partition("=")[2] for a in sys.argv if a.startswith("--uds=")]
child = subprocess.Popen([sys.executable, "-c", STUBBORN])
print("core", child.pid, os.getpgrp(), os.environ["VLLM_SERVER_DEV_MODE"], flush=True)
socketserver.UnixStreamServer(path, Answers).serve_forever()
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


def fake_module(monkeypatch, tmp_path, body):
    """Make `python -m` of the door run `body` instead of vLLM."""
    (tmp_path / "fake_vllm_server.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    monkeypatch.setattr(server, "MODULE", "fake_vllm_server")
    monkeypatch.setattr(server, "server_options", lambda: options()[1])
    monkeypatch.setattr("harness.engines.vllm.server_process.ORPHAN_GRACE_S", 0.2)


def test_a_door_opens_when_the_server_is_healthy_and_leaves_nothing_behind(monkeypatch, tmp_path):
    fake_module(monkeypatch, tmp_path, f"STUBBORN = {STUBBORN!r}\n{FAKE_SERVER}")
    opened = ServerDoor({"max_model_len": 64}, num_threads=1)
    line = next(text for text in opened.process.output() if text.startswith("core"))
    core, group, dev_mode = (int(word) for word in line.split()[1:])
    assert dev_mode == 1
    assert group == opened.process.group
    assert not wait_for_end(core, 0)
    folder = Path(opened._folder.name)
    opened.shutdown()
    opened.shutdown()
    assert wait_for_end(core, 0)
    assert opened.process.wait(0)
    assert not folder.exists()


def test_a_server_that_refuses_its_configuration_raises_the_reason(monkeypatch, tmp_path, capfd):
    body = (
        "def create_engine_config():\n    raise ValueError('step must be\\n  >= 1')\n"
        "create_engine_config()\n"
    )
    fake_module(monkeypatch, tmp_path, body)
    with pytest.raises(EngineRefused, match=r"^step must be >= 1$"):
        ServerDoor({}, num_threads=1)
    assert "ValueError: step must be" in capfd.readouterr().out


def test_a_server_that_crashes_raises_its_last_error(monkeypatch, tmp_path):
    fake_module(monkeypatch, tmp_path, "raise OSError('no such device')\n")
    with pytest.raises(RuntimeError, match=r"^OSError: no such device$"):
        ServerDoor({}, num_threads=1)


def test_a_server_that_is_killed_is_told_by_its_signal_not_by_what_it_said_before(
    monkeypatch, tmp_path
):
    body = (
        "import os, traceback\ntry:\n    1 / 0\nexcept ArithmeticError:\n"
        "    traceback.print_exc()\nos.kill(os.getpid(), 9)\n"
    )
    fake_module(monkeypatch, tmp_path, body)
    with pytest.raises(RuntimeError, match=r"ended before it answered \(signal 9\)"):
        ServerDoor({}, num_threads=1)


def test_a_leader_keeps_its_server_in_its_own_group_and_spares_what_was_there_before(tmp_path):
    script = (
        "import os, subprocess, sys\n"
        "from harness.engines.vllm.server_process import ServerProcess, group_members\n"
        "before = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"served = ServerProcess([sys.executable, '-c', {STUBBORN!r}], os.environ)\n"
        "import harness.engines.vllm.server_process as module\n"
        "module.GRACE_S = 0.2\n"
        "assert served.group == os.getpgrp() == os.getpid()\n"
        "assert served.pid in group_members(os.getpid())\n"
        "served.end()\n"
        "assert sorted(group_members(os.getpid())) == sorted([os.getpid(), before.pid])\n"
        "before.kill(); before.wait()\n"
    )
    env = {**os.environ, "PYTHONPATH": os.fspath(Path(server.__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_signal_counts_as_killed_and_an_exit_code_does_not():
    env = dict(os.environ)
    one = ServerProcess([sys.executable, "-c", "import sys; sys.exit(3)"], env)
    other = ServerProcess([sys.executable, "-c", STUBBORN], env)
    os.kill(other.pid, signal.SIGKILL)
    for process in (one, other):
        assert process.wait(30)
        process.end()
        assert group_members(process.group) == []
    assert (one.is_killed, one.describe_end()) == (False, "exit code 3")
    assert (other.is_killed, other.describe_end()) == (True, "signal 9")
