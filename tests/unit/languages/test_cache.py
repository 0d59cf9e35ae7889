"""The build cache and its confined build processes: hostile sources included."""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from pathlib import Path

import pytest

from worker.languages import BuildError, CompilerKilled, ToolchainMissing, UnknownLanguage, cache, language
from worker.languages.cache import BuildCache, Built, tidy_log
from worker.runner import sandbox

SOURCE = '#include <cmath>\nextern "C" int answer() { return VALUE; }\n'
# Some 2^N instantiations: hours of compile time at N = 40.
BOMB = """
template <int N, int M> struct Fib { static constexpr long value = Fib<N - 1, 2 * M>::value + Fib<N - 1, 2 * M + 1>::value; };
template <int M> struct Fib<0, M> { static constexpr long value = M; };
long bomb = Fib<26, 1>::value;
"""  # noqa: E501 - hostile code is rarely formatted


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> BuildCache:
    return BuildCache(tmp_path_factory.mktemp("builds"))


def answer(built: Built) -> int:
    function = ctypes.CDLL(str(built.path)).answer
    return int(function())


def test_a_library_is_built_once_and_loads(builds: BuildCache) -> None:
    first = builds.build("cpp", SOURCE, ["-DVALUE=41"])
    again = builds.build("cpp", SOURCE, ["-DVALUE=41"])
    assert (first.cached, again.cached) == (False, True)
    assert first.path == again.path
    assert answer(again) == 41
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o444, "a runner may read it, nobody may change it"


def test_flags_and_source_are_part_of_the_key(builds: BuildCache) -> None:
    built = [builds.build("cpp", SOURCE, ["-DVALUE=1"]), builds.build("cpp", SOURCE, ["-DVALUE=2"])]
    built.append(builds.build("cpp", SOURCE.replace("VALUE", "VALUE + 1"), ["-DVALUE=2"]))
    assert [answer(each) for each in built] == [1, 2, 3]


def test_warnings_are_remembered(builds: BuildCache) -> None:
    source = 'extern "C" int answer() { int unused; return 1; }'
    for cached in (False, True):
        built = builds.build("cpp", source, ["-Wall"])
        assert built.cached is cached
        assert "unused variable" in built.log


def test_a_refused_source_is_remembered(builds: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match="undeclared_thing"):
        builds.build("cpp", "int x = undeclared_thing;")
    monkeypatch.setenv("PATH", "")  # no compiler to ask again
    with pytest.raises(BuildError, match="undeclared_thing"):
        builds.build("cpp", "int x = undeclared_thing;")


def test_a_missing_compiler_is_not_the_sources_fault(builds: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.replace("VALUE", "7")
    language("cpp").toolchain()  # the version is known already: the build process finds out
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolchainMissing):
        builds.build("cpp", source)
    monkeypatch.setenv("PATH", path)
    assert answer(builds.build("cpp", source)) == 7, "a machine's fault must not be remembered against the source"


@pytest.mark.parametrize(
    "source",
    [
        '#include "{path}"\n',
        '#define WHERE "{path}"\n#include WHERE\n',
        'asm(".incbin \\"{path}\\"");\n',
        'asm(".include \\"{path}\\"");\n',
        'extern "C" int answer() {{ return __has_include("{path}") ? 1 : 0; }}\n',
    ],
)
@pytest.mark.parametrize("level", ["namespaces", "landlock"])
def test_files_of_this_machine_stay_out_of_reach(tmp_path: Path, source: str, level: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("S3CR3T\n")
    secret.chmod(0o644)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    builds = BuildCache(tmp_path / "builds", level=level)
    try:
        built = builds.build("cpp", source.format(path=secret))
    except BuildError as refused:
        assert "S3CR3T" not in str(refused)
        assert str(tmp_path) not in str(refused)
    except cache.BuildProcessFailed as failed:
        pytest.skip(f"no {level} here: {failed}")
    else:
        assert b"S3CR3T" not in built.path.read_bytes()
        if "has_include" in source:
            assert answer(built) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files that the build user cannot read")
@pytest.mark.parametrize("level", sandbox.LEVELS)
def test_roots_files_are_not_read_at_any_level(tmp_path: Path, level: str) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    secret = tmp_path / "secret"
    secret.write_text("S3CR3T\n")
    secret.chmod(0o600)
    with pytest.raises(BuildError) as refused:
        BuildCache(tmp_path / "builds", level=level).build("cpp", f'#include "{secret}"\n')
    assert "S3CR3T" not in str(refused.value)


def test_the_environment_does_not_reach_the_compiler(
    builds: BuildCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = Path("/usr/include/linux/version.h")
    if not header.exists():
        pytest.skip("no header to find through CPATH")
    monkeypatch.setenv("CPATH", str(header.parent))
    with pytest.raises(BuildError, match=r"version.h: No such file"):
        builds.build("cpp", "#include <version.h>\n")


def test_a_template_bomb_is_killed_and_forgotten(tmp_path: Path) -> None:
    bombed = BuildCache(tmp_path / "builds", timeout_s=1.0)
    with pytest.raises(CompilerKilled):
        bombed.build("cpp", BOMB)
    assert not list((tmp_path / "builds").glob("??/*")), "the next machine may be faster"
    assert not list((tmp_path / "builds" / "incoming").iterdir())


def test_memory_is_limited(tmp_path: Path) -> None:
    tight = BuildCache(tmp_path / "builds", memory_bytes=256 << 20)
    with pytest.raises(CompilerKilled):
        tight.build("cpp", BOMB)


def test_flags_outside_the_list_build_nothing(builds: BuildCache) -> None:
    with pytest.raises(BuildError, match="not allowed: -fplugin=/tmp/x.so"):
        builds.build("cpp", SOURCE, ["-DVALUE=1", "-fplugin=/tmp/x.so"])


def test_unknown_languages_and_huge_sources_are_refused(builds: BuildCache) -> None:
    with pytest.raises(UnknownLanguage, match="'fortran': use one of cpp, cuda, triton"):
        builds.build("fortran", "end")
    with pytest.raises(BuildError, match="larger than 1024 KiB"):
        builds.build("cpp", "/" * (1 << 20) + "//")


def test_two_builds_of_one_source_end_whole(tmp_path: Path) -> None:
    caches = [BuildCache(tmp_path / "builds") for _ in range(3)]
    found: list[Built] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(each.build("cpp", SOURCE, ["-DVALUE=5"])))
        for each in caches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer(built) for built in found] == [5, 5, 5]
    assert len({built.path for built in found}) == 1


def test_the_cache_stays_within_its_size(tmp_path: Path) -> None:
    small = BuildCache(tmp_path / "builds", max_bytes=1)
    old = small.build("cpp", SOURCE, ["-DVALUE=1"])
    an_hour_ago = old.path.stat().st_mtime - 3600
    os.utime(old.path.with_suffix(".json"), (an_hour_ago, an_hour_ago))
    new = small.build("cpp", SOURCE, ["-DVALUE=2"])
    assert not old.path.exists()
    assert not old.path.with_suffix(".json").exists()
    assert new.path.exists(), "an entry that was just asked for is never dropped"


def test_a_build_process_that_cannot_run_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["/nowhere"])  # it finds no module of ours
    with pytest.raises(cache.BuildProcessFailed, match="ModuleNotFoundError"):
        BuildCache(tmp_path / "builds").build("cpp", SOURCE, ["-DVALUE=1"])


def test_logs_lose_folders_and_length() -> None:
    log = (
        "In file included from /usr/include/c++/12/cmath:42,\n  from /tmp/x y/kernel.cpp: a = b / c / d; // /etc/shadow"
    )
    tidy = tidy_log(log)
    assert "cmath:42" in tidy
    assert "/usr/include" not in tidy
    assert "/etc/" not in tidy
    assert "a = b / c / d;" in tidy
    assert len(tidy_log("x" * 100_000)) < cache.MAX_LOG_CHARS + 50
