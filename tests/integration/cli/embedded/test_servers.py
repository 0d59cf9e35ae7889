"""The embedded Postgres and Valkey: durable, private, and gone with whoever started them."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from cli.embedded import EmbeddedPostgres, EmbeddedValkey
from cli.embedded.errors import DiskFull, FolderNotOurs, FolderUnusable, InUse, OtherVersion, ServerNotInstalled
from cli.embedded.home import SOCKET_PATH_LIMIT
from cli.embedded.postgres import choose_identity, find_binaries
from cli.spawn import Identity, launch_argv
from tests.support.people import AS_ROOT, ROOT, USERS, first_line, home_of, python, wait_for_none

HOLDER = str(ROOT / "tests/integration/cli/embedded/holder.py")


@pytest.fixture
def home() -> Iterator[Path]:
    with home_of("self") as folder:
        yield folder


def connect(postgres: EmbeddedPostgres) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(postgres.url.replace("+psycopg", ""), autocommit=True)


def redis_client(valkey: EmbeddedValkey) -> redis.Redis:
    return redis.Redis.from_url(valkey.url.replace("redis+socket", "unix"))


def setting(connection: psycopg.Connection[tuple[object, ...]], name: str) -> object:
    row = connection.execute("select current_setting(%s)", [name]).fetchone()
    assert row is not None
    return row[0]


def test_postgres_is_durable_utf8_and_on_a_socket_only(home: Path) -> None:
    with EmbeddedPostgres(home) as postgres, connect(postgres) as connection:
        assert setting(connection, "fsync") == "on"
        assert setting(connection, "synchronous_commit") == "on"
        assert setting(connection, "full_page_writes") == "on"
        assert setting(connection, "server_encoding") == "UTF8"
        assert setting(connection, "listen_addresses") == ""
        assert setting(connection, "TimeZone") == "UTC"


def test_postgres_keeps_its_settings_against_the_callers_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c fsync=off")
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGPORT", "1")
    with EmbeddedPostgres(home) as postgres:
        monkeypatch.delenv("PGOPTIONS")
        monkeypatch.delenv("PGPORT")
        with connect(postgres) as connection:
            assert setting(connection, "fsync") == "on"


def test_committed_rows_survive_a_kill_of_the_server(home: Path) -> None:
    with EmbeddedPostgres(home) as postgres:
        with connect(postgres) as connection:
            connection.execute("create table kept (i int)")
            connection.execute("insert into kept select generate_series(1, 1000)")
        assert postgres.pid is not None and postgres.process is not None
        os.kill(postgres.pid, signal.SIGKILL)
        postgres.process.wait()
        assert postgres.poll() == -signal.SIGKILL
        postgres.start()
        with connect(postgres) as connection:
            assert connection.execute("select count(*) from kept").fetchone() == (1000,)


def test_a_stale_pid_file_that_names_a_living_process_does_not_stop_the_start(home: Path) -> None:
    """After a kill -9 the pid in postmaster.pid may be anybody's; Postgres alone would refuse to start."""
    with EmbeddedPostgres(home) as postgres:
        stale = (home / "postgres" / "postmaster.pid").read_text().splitlines()
        assert stale[0] == str(postgres.pid)
    (home / "postgres" / "postmaster.pid").write_text("\n".join([str(os.getpid()), *stale[1:]]))
    (home / "run" / ".s.PGSQL.5432.lock").write_text(f"{os.getpid()}\n")
    with EmbeddedPostgres(home) as postgres, connect(postgres) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_valkey_appends_never_evicts_and_keeps_what_it_was_told_over_a_kill(home: Path) -> None:
    with EmbeddedValkey(home) as valkey:
        with redis_client(valkey) as client:
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("port") == {"port": "0"}
            client.rpush("doors", "a", "b")
        assert valkey.pid is not None and valkey.process is not None
        os.kill(valkey.pid, signal.SIGKILL)
        valkey.process.wait()
        valkey.start()
        with redis_client(valkey) as client:
            assert client.lrange("doors", 0, -1) == [b"a", b"b"]


def test_nobody_else_can_reach_the_data_or_the_sockets(home: Path) -> None:
    with EmbeddedPostgres(home), EmbeddedValkey(home):
        for name in ("postgres", "valkey", "run", "log"):
            assert stat.S_IMODE((home / name).stat().st_mode) == 0o700, name


def test_folders_above_the_home_are_left_as_they_are(home: Path) -> None:
    above = home / "closed"
    above.mkdir(mode=0o700)
    with EmbeddedPostgres(above / "inside"):
        pass
    assert stat.S_IMODE(above.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["d" * SOCKET_PATH_LIMIT, "a folder & more"])
def test_a_home_unfit_for_sockets_gets_a_private_folder_for_them(home: Path, name: str) -> None:
    deep = home / name
    with EmbeddedPostgres(deep) as postgres, EmbeddedValkey(deep) as valkey:
        folder = valkey.socket.parent
        try:
            assert not folder.is_relative_to(home)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            with connect(postgres) as connection, redis_client(valkey) as client:
                assert connection.execute("select 1").fetchone() == (1,)
                assert client.ping()
        finally:
            postgres.stop()
            valkey.stop()
            shutil.rmtree(folder)


def test_a_second_server_in_the_same_home_says_whose_it_is(home: Path) -> None:
    holder = python("self", [HOLDER, str(home)])
    try:
        first_line(holder, "urls")
        with pytest.raises(InUse, match=rf"already run by process {holder.pid}"):
            EmbeddedPostgres(home).start()
        with pytest.raises(InUse, match=rf"already run by process {holder.pid}"):
            EmbeddedValkey(home).start()
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize("user", USERS)
def test_killing_the_owner_ends_the_servers_and_the_next_owner_finds_the_rows(user: str) -> None:
    with home_of(user) as home:
        for expected in (1, 2):
            holder = python(user, [HOLDER, str(home)])
            _, url, _, _, _ = first_line(holder, "urls").split()
            with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
                connection.execute("create table if not exists kept (i int)")
                connection.execute("insert into kept values (1)")
                assert connection.execute("select count(*) from kept").fetchone() == (expected,)
            holder.kill()
            holder.communicate()
        assert wait_for_none(home) == []


@pytest.mark.skipif(not AS_ROOT, reason="only root has the choice of how Postgres runs")
def test_as_root_files_stay_roots_and_the_server_is_no_root_inside(home: Path) -> None:
    assert choose_identity(find_binaries(), home).kind == "mapped"
    with EmbeddedPostgres(home) as postgres:
        assert (home / "postgres" / "PG_VERSION").stat().st_uid == 0
        inside = Path(f"/proc/{postgres.pid}/uid_map").read_text().split()
        assert inside[0] != "0" and inside[1:] == ["0", "1"]


@pytest.mark.skipif(not AS_ROOT, reason="only root has the choice of how Postgres runs")
def test_as_root_without_user_namespaces_postgres_runs_as_nobody(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out where a container's seccomp profile forbids namespaces; then back again, over the same data."""
    home.chmod(0o700)
    with EmbeddedPostgres(home) as postgres, connect(postgres) as connection:
        connection.execute("create table kept (i int)")
    with monkeypatch.context() as patch:
        patch.setattr("cli.embedded.postgres.choose_identity", lambda binaries, home: Identity("dropped"))
        with EmbeddedPostgres(home) as postgres, connect(postgres) as connection:
            connection.execute("insert into kept values (1)")
            status = Path(f"/proc/{postgres.pid}/status").read_text()
            assert "Uid:\t65534\t65534\t65534\t65534" in status
            assert "CapEff:\t0000000000000002" in status
    with EmbeddedPostgres(home) as postgres, connect(postgres) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (1,)


@pytest.mark.skipif(not AS_ROOT, reason="needs root to make a namespace without further namespaces")
def test_as_root_where_the_kernel_refuses_namespaces_the_other_way_is_chosen(home: Path) -> None:
    asker = python("self", [str(ROOT / "tests/integration/cli/embedded/no_namespaces.py"), str(home)])
    said, _ = asker.communicate(timeout=60)
    assert said.strip() == "dropped rows 1"


@pytest.mark.skipif(not AS_ROOT, reason="needs root to become a user without a name")
def test_a_user_id_without_a_name_is_enough(home: Path) -> None:
    nameless = 54321
    os.chown(home, nameless, nameless)
    argv = launch_argv(
        [sys.executable, HOLDER, str(home)],
        identity=Identity("dropped", nameless, nameless),
        death_signal=signal.SIGKILL,
    )
    holder = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT), "PATH": os.defpath}
    )
    try:
        first_line(holder, "urls")
        assert (home / "postgres" / "PG_VERSION").stat().st_uid == nameless
    finally:
        holder.kill()
        holder.communicate()


def test_a_folder_that_may_not_be_written_is_one_sentence(home: Path) -> None:
    (home / "file").write_text("")
    with pytest.raises(FolderUnusable, match="choose another folder with --home"):
        EmbeddedPostgres(home / "file" / "below").start()


def test_a_folder_that_is_no_cluster_is_not_touched(home: Path) -> None:
    (home / "postgres").mkdir()
    (home / "postgres" / "thesis.txt").write_text("mine")
    with pytest.raises(FolderNotOurs, match="nothing in it was touched"):
        EmbeddedPostgres(home).start()
    assert [path.name for path in (home / "postgres").iterdir()] == ["thesis.txt"]


def test_a_cluster_of_another_version_is_named_and_left_alone(home: Path) -> None:
    with EmbeddedPostgres(home):
        pass
    (home / "postgres" / "PG_VERSION").write_text("12\n")
    with pytest.raises(OtherVersion, match="made by PostgreSQL 12"):
        EmbeddedPostgres(home).start()


def test_an_interrupted_initdb_is_begun_anew(home: Path) -> None:
    (home / "postgres.partial" / "base").mkdir(parents=True)
    with EmbeddedPostgres(home) as postgres, connect(postgres) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    assert not (home / "postgres.partial").exists()


def test_without_the_wheels_the_sentence_names_the_setting(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServerNotInstalled, match="KERNELWRIGHT_DATABASE_URL"):
        EmbeddedPostgres(home).start()
    with pytest.raises(ServerNotInstalled, match="KERNELWRIGHT_REDIS_URL"):
        EmbeddedValkey(home).start()


@pytest.mark.skipif(not AS_ROOT, reason="needs root to mount a small disk")
@pytest.mark.parametrize("size", ["64k", "8m"])
def test_a_full_disk_is_one_sentence(home: Path, size: str) -> None:
    script = (
        "import pathlib, sys; from cli.embedded import EmbeddedPostgres, EmbeddedError\n"
        "try: EmbeddedPostgres(pathlib.Path(sys.argv[1])).start()\n"
        "except EmbeddedError as error: print(type(error).__name__, error)"
    )
    mount = f'mount -t tmpfs -o size={size},mode=700 none "$0" && exec "$@"'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, str(home)]
    done = subprocess.run(
        [*argv, sys.executable, "-c", script, str(home)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.startswith(f"{DiskFull.__name__} No space is left on the disk"), done.stdout + done.stderr
