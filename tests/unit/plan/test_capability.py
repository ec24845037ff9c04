import pytest

from harness.core import OffloadConfig, Setting, UsageError
from harness.plan import unsupported_reason

UVA = Setting(runner="v2", offload=OffloadConfig(cpu_offload_gb=1))


@pytest.mark.parametrize(
    ("setting", "supports", "reason"),
    [
        (UVA, {}, None),
        (UVA, {"runners": ["v1"]}, "engine 'reference' has runners v1, not 'v2'"),
        (UVA, {"backends": []}, "engine 'reference' has backends none, not 'uva'"),
        (UVA, {"architectures": ["X"]},
         "engine 'reference' has architectures X, not 'LlamaForCausalLM'"),
        (UVA, {"dtypes": ["bfloat16"]}, "engine 'reference' has dtypes bfloat16, not 'float32'"),
        (UVA, {"uva": False}, "engine 'reference' does not support uva"),
        (UVA, {"pin_memory": "no driver"},
         "engine 'reference' does not support pin_memory: no driver"),
        (UVA, {"graphs": False, "multiprocessing": False}, None),
        (Setting(enforce_eager=False), {"graphs": False},
         "engine 'reference' does not support graphs"),
        (Setting(enforce_eager=False), {"graphs": {"cuda": "not there"}}, None),
        (Setting(enforce_eager=False, engine_args={"device": "cuda"}),
         {"graphs": {"cuda": "not there"}},
         "engine 'reference' does not support graphs: not there"),
        (Setting(engine_args={"device": "cuda"}), {"graphs": {"cuda": False}}, None),
        (Setting(multiprocessing=True), {"multiprocessing": "one process only"},
         "engine 'reference' does not support multiprocessing: one process only"),
        (Setting(), {"runners": ["v1"], "backends": [], "uva": False, "pin_memory": False}, None),
        (UVA, {"runners": ["v1", "v2"], "backends": ["uva"], "uva": True, "pin_memory": True},
         None),
    ],
)  # fmt: skip
def test_reason_says_what_the_engine_lacks(make_model, setting, supports, reason):
    assert reason == unsupported_reason(setting, make_model(), supports)


def test_uva_and_pinning_are_not_missed_where_nobody_asks_for_them(make_model):
    offload = OffloadConfig(cpu_offload_gb=1, pin_memory=False, uva=False)

    assert unsupported_reason(Setting(offload=offload), make_model(),
                              {"uva": False, "pin_memory": False}) is None  # fmt: skip


@pytest.mark.parametrize(
    ("supports", "text"),
    [
        ({"runner": ["v1"]}, "unknown capability 'runner'; known: runners, backends"),
        ({"runners": "v1"}, "capability runners='v1' must be a list"),
        ({"graphs": {"cuda": 1}}, "capability graphs={'cuda': 1} must be True, False or a reason"),
        ({"uva": 1}, "capability uva=1 must be True, False or a reason"),
    ],
)
def test_statement_of_another_kind_is_refused(make_model, supports, text):
    with pytest.raises(UsageError, match=text):
        unsupported_reason(UVA, make_model(), supports)
