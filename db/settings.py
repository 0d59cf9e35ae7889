"""The settings that every process shares, read from the environment (`KERNELWRIGHT_…`) in one place."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_RATE = r"^$|^[1-9]\d{0,8}/(second|minute|hour|day)$"


class SettingsError(Exception):
    """A setting is missing or unusable; the message says which and what to set it to."""


class MissingDatabaseUrl(SettingsError):
    """KERNELWRIGHT_DATABASE_URL is not set: run `kernelwright up`, or set it to postgresql+psycopg://user@host/name."""

    def __str__(self) -> str:
        return str(self.__doc__)


class MissingRedisUrl(SettingsError):
    """KERNELWRIGHT_REDIS_URL is not set: run `kernelwright up`, or set it to redis://host:6379/0 or unix:///path/to/socket."""

    def __str__(self) -> str:
        return str(self.__doc__)


class NoAuth(SettingsError):
    """KERNELWRIGHT_AUTH is not `required`, and {host} is an address that others reach: make a key (kernelwright keys
    NAME --create --scope admin) and set KERNELWRIGHT_AUTH=required, or listen on 127.0.0.1."""

    def __init__(self, host: str) -> None:
        super().__init__(" ".join(str(self.__doc__).split()).format(host=host))


class Settings(BaseSettings):
    """What a process must know before it can start. Both URLs are secrets: they may carry passwords."""

    model_config = SettingsConfigDict(
        env_prefix="KERNELWRIGHT_", extra="ignore", frozen=True, hide_input_in_errors=True
    )

    home: Path = Path("~/.kernelwright")
    """Where the embedded servers, the build cache and the logs live."""
    database_url: SecretStr | None = None
    """Postgres: postgresql+psycopg://user:password@host/name. `kernelwright up` starts one of its own without it."""
    redis_url: SecretStr | None = None
    """Redis or Valkey: redis://host:6379/0 or unix:///path/to/socket. `kernelwright up` starts a Valkey without it."""
    auth: Literal["required", "loopback"] = "loopback"
    """Who needs an API key: everybody (`required`), or everybody but programs of this machine (`loopback`)."""
    rate_limit: str = Field(default="6000/minute", pattern=_RATE)
    """Requests of one key; empty: any number. On loopback without a key nothing is limited."""
    rate_limit_address: str = Field(default="300/minute", pattern=_RATE)
    """Requests of one address that have no usable key, before they are refused as too many."""
    streams_per_key: int = Field(default=200, ge=0)
    """Event streams that one key may hold open at each server of the API; 0: any number. On loopback without a key
    nothing is limited."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto` is console on a terminal and JSON elsewhere."""
    lease_s: float = Field(default=45.0, gt=0)
    """How long a worker owns claimed work without renewing it."""
    renew_s: float = Field(default=10.0, gt=0)
    """How often a worker renews its lease and learns of a cancel."""
    worker_gone_s: float = Field(default=60.0, gt=0)
    """After how much silence a worker counts as gone."""
    api_processes: int = Field(default=1, ge=1, le=64)
    """Processes of the API that `kernelwright up` starts on its port. One serves a core; each takes 120 MB."""
    evaluators_per_gpu: int = Field(default=1, ge=1, le=16)
    """Evaluators that share one GPU. While one times alone, the others build, and check beside each other; each has a
    context and arenas of its own on it. One more than the share of builds in a judgement is enough."""
    judge_threads: int | None = Field(default=None, ge=1)
    """Threads of a judge's own arithmetic on the CPU, and of what it runs there. None: one for each core, or its share
    of the cores where several judges of GPUs are started together."""
    minimum_sandbox: Literal["namespaces", "landlock", "process"] = "landlock"
    """A worker whose machine offers less refuses to run candidates. `process` confines little: trusted code only."""

    request_model: str | None = None
    """Writes the reference for a request in plain words that no bundled problem fits, in litellm's spelling."""

    embedding_model: str | None = None
    """Embeds what the knowledge base holds and the problems of jobs, in litellm's spelling: their texts are sent to its
    provider. None: the bundled embedder alone."""

    tune_configurations: int = Field(default=24, ge=0)
    """Configurations that one `tune` measures before the best is judged; 0 judges each as a candidate of its own."""
    tune_wall_s: float = Field(default=20.0, gt=0)
    """After so many seconds a `tune` measures no more of them."""

    profile_candidates: bool = True
    """Whether workers look for the bottleneck of what they accept, for the prompts of its children: 1 to 3 s each."""

    keep_code: bool = True
    """Whether the generated code of what is accepted is kept: PTX, SASS, assembly (docs/operations.md says what it
    costs)."""

    bundled_kernels: bool = True
    """Whether `kernelwright up` loads the certified kernels that come with it. Without them a search starts from
    nothing: none is carried over from another device, and no prompt is told of one."""

    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Where the metrics of this node's workers are served, at /metrics; None: nowhere. The API has its own /metrics."""
    metrics_host: str = "127.0.0.1"
    """The address for that port."""
    metrics_token: SecretStr | None = None
    """What a scrape from another machine must send as a bearer token, to the API and to the workers' port. None: only
    scrapes from this machine are answered."""

    otlp_endpoint: str = Field(default="", pattern=r"^$|^https?://\S+$")
    """Where traces are sent, by OTLP over HTTP (`http://collector:4318`). Empty: nothing is traced."""

    webhook_allow: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = ()
    """Networks of this site that webhooks may be sent to, by http too: `127.0.0.0/8,10.20.0.0/16`. None as it comes."""

    @field_validator("webhook_allow", mode="before")
    @classmethod
    def _listed(cls, text: object) -> object:
        return [each.strip() for each in text.split(",") if each.strip()] if isinstance(text, str) else text

    @property
    def home_path(self) -> Path:
        """The home with `~` resolved."""
        return self.home.expanduser()

    @property
    def sqlalchemy_url(self) -> str:
        """The database URL with the psycopg 3 driver named. Raises MissingDatabaseUrl."""
        if self.database_url is None:
            raise MissingDatabaseUrl
        return sqlalchemy_url(self.database_url.get_secret_value())

    @property
    def broker_url(self) -> str:
        """The Redis URL as Celery wants it (`redis+socket://` for a socket). Raises MissingRedisUrl."""
        if self.redis_url is None:
            raise MissingRedisUrl
        return broker_url(self.redis_url.get_secret_value())

    @property
    def redis_client_url(self) -> str:
        """The Redis URL as redis-py wants it (`unix://` for a socket). Raises MissingRedisUrl."""
        if self.redis_url is None:
            raise MissingRedisUrl
        return redis_client_url(self.redis_url.get_secret_value())


def is_loopback(host: str) -> bool:
    """Whether this name or address is the machine itself, whatever a name server says."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def check_bind(settings: Settings, host: str) -> None:
    """Before the API listens on `host`. Raises NoAuth when others could reach it without a key."""
    if settings.auth != "required" and not is_loopback(host):
        raise NoAuth(host)


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process, read once. Tests that change the environment call `get_settings.cache_clear()`."""
    return Settings()


def sqlalchemy_url(url: str) -> str:
    """`postgres://` and `postgresql://` name psycopg 3 here, whatever the default driver of the day is."""
    scheme, separator, rest = url.partition("://")
    if scheme in {"postgres", "postgresql"}:
        return f"postgresql+psycopg{separator}{rest}"
    return url


def broker_url(url: str) -> str:
    """Any accepted Redis URL in Celery's spelling: `unix:///s?db=1` becomes `redis+socket:///s?virtual_host=1`."""
    return _respell(url, socket_scheme="redis+socket", database_key="virtual_host")


def redis_client_url(url: str) -> str:
    """Any accepted Redis URL in redis-py's spelling: `redis+socket:///s?virtual_host=1` becomes `unix:///s?db=1`."""
    return _respell(url, socket_scheme="unix", database_key="db")


def _respell(url: str, *, socket_scheme: str, database_key: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"unix", "redis+socket"}:
        return url
    query = [(database_key if key in {"db", "virtual_host"} else key, value) for key, value in parse_qsl(parts.query)]
    respelt = urlunsplit(("x", parts.netloc, parts.path, urlencode(query), ""))
    # urlunsplit drops the empty authority of `unix:///path`; both clients need all three slashes.
    authority_and_path = respelt.removeprefix("x:").removeprefix("//")
    return f"{socket_scheme}://{authority_and_path}"
