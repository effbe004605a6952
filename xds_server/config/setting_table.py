"""The settings of the process: what each is called, its default, and what `--help` and the documents say of it."""

from __future__ import annotations

from dataclasses import dataclass

ENV_PREFIX = "XDS_SERVER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table."""

    name: str
    """Key in the file's `server` section."""
    default: str | float | None
    help: str
    number: bool = False

    @property
    def env(self) -> str:
        """Name of the environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Name of the command line flag."""
        return "--" + self.name.replace("_", "-")


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="xds_listen",
        # Neither side is authenticated by default: who lets other hosts in decides so.
        default="127.0.0.1:18000",
        help="ip:port for proxies (xDS) and agents (telemetry); port 0 takes a free one; "
        "0.0.0.0:18000 lets other hosts in.",
    ),
    Setting(
        name="admin_listen",
        default="127.0.0.1:18001",
        help="ip:port of the admin HTTP server (health, metrics, debug, drain).",
    ),
    Setting(
        name="state_dir",
        default=None,
        help="Directory in which the last plan survives a restart; default: $STATE_DIRECTORY "
        "(systemd), else ~/.local/state/gpu-xds.",
    ),
    Setting(
        name="agents_token_file",
        default=None,
        help="File with the bearer token that agents must present; without one, agents may not "
        "register instances.",
    ),
    Setting(
        name="admin_tokens_file",
        default=None,
        help="File of who may look and order at the admin address: one token per line "
        "(docs/security.md, xds-server token).",
    ),
    Setting(
        name="admin_anonymous",
        default=None,
        help="What is permitted without a token: none, viewer or operator. Default: none where there "
        "is a file of tokens, else operator on loopback and viewer elsewhere.",
    ),
    Setting(
        name="xds_cert_file",
        default=None,
        help="TLS for proxies and agents: file of the certificate chain (PEM).",
    ),
    Setting(name="xds_key_file", default=None, help="File of its private key (PEM)."),
    Setting(
        name="xds_client_ca_file",
        default=None,
        help="Only proxies and agents with a certificate of these authorities may connect (PEM).",
    ),
    Setting(
        name="admin_cert_file",
        default=None,
        help="TLS for the admin address: file of the certificate chain (PEM).",
    ),
    Setting(name="admin_key_file", default=None, help="File of its private key (PEM)."),
    Setting(
        name="log_format",
        default="auto",
        help="console, json, or auto: console on a terminal, JSON otherwise.",
    ),
    Setting(name="log_level", default="info", help="debug, info, warning or error."),
    Setting(
        name="grace_s",
        default=5.0,
        number=True,
        help="Without a restored plan, how long proxies wait for the first telemetry.",
    ),
    Setting(
        name="push_gap_ms",
        default=50.0,
        number=True,
        help="Least time between two pushes under a storm of changes; faults do not wait.",
    ),
    Setting(
        name="store_file",
        default=None,
        help="File of the history of events (SQLite); default: events.db in the state directory.",
    ),
    Setting(
        name="store_keep_days",
        default=30.0,
        number=True,
        help="Events that are older are deleted.",
    ),
    Setting(
        name="store_max_bytes",
        default=256.0 * 1024 * 1024,
        number=True,
        help="When the history is larger its oldest events are deleted.",
    ),
    Setting(
        name="traces_url",
        default=None,
        help="Where traces of pushes go: an OTLP/HTTP receiver, like http://127.0.0.1:4318/v1/traces; "
        "needs gpu-xds[otel]; without it there are none.",
    ),
)
