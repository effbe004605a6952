"""What a name may look like: ours (of a model, a tier, an instance, a tenant, a person), and those of Kubernetes."""

from __future__ import annotations

NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
"""Names become parts of Envoy cluster and route names, of file names and of commands."""
NAME_RULE = "at most 63 letters, digits, '.', '_' or '-', none of these at an end"
"""The same for people."""

LABEL_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
"""RFC 1123, a DNS label: names of namespaces, and what Istio takes as the name of a subset."""
OBJECT_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
"""RFC 1123, a DNS subdomain: names of objects in Kubernetes."""
HOST_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+$"
"""A host with a dot at least: what a short name means depends on the namespace that it is read in."""
GATEWAY_PATTERN = r"^(mesh|([a-z0-9.-]+/)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?)$"
PATTERN_RULES = {
    LABEL_PATTERN: "a name of Kubernetes: at most 63 lower case letters, digits or '-', no '-' at an end",
    OBJECT_PATTERN: "the name of a Kubernetes object: lower case letters, digits, '-' and '.', none of these "
    "at an end",
    HOST_PATTERN: "a full host name, like llm.ai.svc.cluster.local",
    GATEWAY_PATTERN: "mesh, or the namespace/name of a gateway",
}
"""The same for people."""
