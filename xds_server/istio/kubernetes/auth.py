"""How the control plane signs in: with its pod's service account, or with a kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.config.config_exception import ConfigException
from kubernetes_asyncio.config.incluster_config import load_incluster_config
from kubernetes_asyncio.config.kube_config import load_kube_config

from xds_server.istio.kubernetes.errors import AuthError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, the server's certificate and its namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """Where to look for a server and an identity."""

    kubeconfig: str | None = None
    """A file of this form; None = the pod's account, else `$KUBECONFIG`, else `~/.kube/config`."""
    context: str | None = None
    """Which of its contexts; None = its current one."""


def is_in_cluster(environ: Mapping[str, str], account: Path = ACCOUNT) -> bool:
    """Return whether this process is a pod that may ask the API server."""
    return "KUBERNETES_SERVICE_HOST" in environ and (account / "token").is_file()


async def signed_in(
    sign_in: SignIn, *, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT
) -> Configuration:
    """Return where the server is and how to sign in there.

    Raises:
        AuthError: There is neither, or it cannot be read.
    """
    made = Configuration()
    # Watches hold one connection each; the library's 100 would be the limit of objects.
    made.connection_pool_maxsize = 0
    if sign_in.kubeconfig is None and is_in_cluster(environ, account):
        try:
            load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=made,
                token_filename=str(account / "token"),
                cert_filename=str(account / "ca.crt"),
                environ=environ,
            )
        except (ConfigException, OSError) as error:
            raise AuthError(f"the pod's service account in {account}: {error}") from error
        return made
    return await _from_kubeconfig(sign_in, made, environ)


async def _from_kubeconfig(
    sign_in: SignIn, made: Configuration, environ: Mapping[str, str]
) -> Configuration:
    named = sign_in.kubeconfig or environ.get("KUBECONFIG") or "~/.kube/config"
    paths = [Path(each).expanduser() for each in named.split(os.pathsep) if each]
    if not any(each.is_file() for each in paths):
        raise AuthError(
            f"no service account of a pod and no kubeconfig {named}: set istio.kubernetes.kubeconfig, or "
            "run in a pod with automountServiceAccountToken: true"
        )
    try:
        await load_kube_config(
            config_file=named,
            context=sign_in.context,
            client_configuration=made,
            persist_config=False,
        )
    except (ConfigException, OSError, yaml.YAMLError, TypeError, AttributeError) as error:
        context = f", context {sign_in.context}" if sign_in.context else ""
        raise AuthError(f"kubeconfig {named}{context}: {error}") from error
    return made


def own_namespace(
    *, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT
) -> str | None:
    """Return the namespace of the pod that this is; None where it is none."""
    if not is_in_cluster(environ, account):
        return None
    try:
        return (account / "namespace").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
