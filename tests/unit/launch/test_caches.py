from harness.core import Setting
from harness.launch.caches import CACHES, locate_caches


def test_caches_are_of_one_interpreter_and_release_in_the_session_or_in_a_kept_folder(tmp_path):
    old = Setting(engine="vllm", python="/some/python", release="0.28.0")
    new = Setting(engine="vllm", python="/some/python", release="0.32.0")
    other = Setting(engine="vllm", python="/other/python", release="0.32.0")

    places = [locate_caches(s, tmp_path / "scratch", None) for s in (old, new, other)]

    assert [set(CACHES)] * 3 == [set(place) for place in places]
    assert 3 * len(CACHES) == len({folder for place in places for folder in place.values()})
    kept = locate_caches(old, tmp_path / "scratch", str(tmp_path / "kept"))
    assert all(folder.startswith(f"{tmp_path}/kept/") for folder in kept.values())
    assert kept == locate_caches(old, tmp_path / "another", str(tmp_path / "kept"))


def test_a_cache_that_the_setting_names_is_left_to_it(tmp_path):
    own = Setting(engine="vllm", env={"VLLM_CACHE_ROOT": "/mine"})

    assert set(CACHES) - {"VLLM_CACHE_ROOT"} == set(locate_caches(own, tmp_path, None))


def test_a_launch_has_its_caches_where_the_caller_keeps_them(make_launcher, monkeypatch, tmp_path):
    vllm, launcher = Setting(engine="vllm", python="/some/python"), make_launcher()
    monkeypatch.delenv("HARNESS_ENGINE_CACHE", raising=False)
    of_session = launcher._environment(vllm)
    monkeypatch.setenv("HARNESS_ENGINE_CACHE", str(tmp_path / "kept"))
    kept = launcher._environment(vllm)

    assert all(not of_session[name].startswith(f"{tmp_path}/kept/") for name in CACHES)
    assert all(kept[name].startswith(f"{tmp_path}/kept/") for name in CACHES)
    assert not {*CACHES} & launcher._environment(Setting()).keys()
