"""Regenerate `fleet_protos` from the .proto sources, or check that it is up to date.

The generated modules live under the importable name `fleet_protos` because `fleet` and `istio` alone are
not ours; their content is what protoc writes, byte for byte. `--check` regenerates into a temporary folder and
compares, so that a forgotten `make protos` fails in CI.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
SOURCES = [
    "fleet/telemetry/v1/telemetry.proto",
    "istio/mcp/v1alpha1/resource.proto",
    "istio/networking/v1alpha3/destination_rule.proto",
    "istio/networking/v1alpha3/service_entry.proto",
    "istio/networking/v1alpha3/virtual_service.proto",
]
"""None of Istio's imports another: the modules that protoc writes would look for a package `istio`."""
TARGET = ROOT / "fleet_protos"


def generate(target: Path) -> list[Path]:
    """Write the modules of every source below `target` and return their relative paths."""
    well_known = str(resources.files("grpc_tools") / "_proto")
    written: list[Path] = []
    with tempfile.TemporaryDirectory() as scratch:
        arguments = ["protoc", f"-I{ROOT}", f"-I{well_known}"]
        arguments += [f"--python_out={scratch}", f"--pyi_out={scratch}", *SOURCES]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed")
        for source in SOURCES:
            for suffix in ("_pb2.py", "_pb2.pyi"):
                made = Path(source.removesuffix(".proto") + suffix)
                # fleet/telemetry/... -> telemetry/..., and istio/... as it is.
                relative = made.relative_to("fleet") if made.parts[0] == "fleet" else made
                (target / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(scratch) / made, target / relative)
                written.append(relative)
    return written


def stale() -> list[Path]:
    """Return the generated files that differ from what protoc writes now."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        return [
            path
            for path in generate(fresh)
            if not (TARGET / path).exists()
            or (TARGET / path).read_bytes() != (fresh / path).read_bytes()
        ]


def main() -> None:
    """Run from the Makefile: `protos` writes, `check` passes --check."""
    if "--check" in sys.argv[1:]:
        if files := stale():
            raise SystemExit(f"generated code is stale ({', '.join(map(str, files))}): make protos")
        return
    generate(TARGET)


if __name__ == "__main__":
    main()
