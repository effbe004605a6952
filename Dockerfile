# Control plane and agent in one image; `--target demo` adds the simulated engines and the load generator.
#
#   docker build -t gpu-xds .
#
# Where packages come from is the builder's business: give pip a configuration or the certificates of a
# mirror as build secrets (`--secret id=pip_conf,src=pip.conf --secret id=pip_cert,src=roots.pem`).
# Pin PYTHON_IMAGE by digest where builds months apart must be the same.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# The times in archives follow this and not the clock.
ENV SOURCE_DATE_EPOCH=1767225600 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore PYTHONHASHSEED=0
# pip and setuptools stay in an environment of their own: the product has neither.
RUN python3 -m venv /tools && python3 -m venv --without-pip /opt/gpu-xds
WORKDIR /src
COPY constraints.txt pyproject.toml README.md ./
# Dependencies first: they change less often than the code.
RUN --mount=type=secret,id=pip_conf --mount=type=secret,id=pip_cert \
    set -eu; \
    if [ -f /run/secrets/pip_conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip_conf; fi; \
    if [ -f /run/secrets/pip_cert ]; then export PIP_CERT=/run/secrets/pip_cert; fi; \
    python3 -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['dependencies'], *p['optional-dependencies']['kubernetes'], sep='\n')" \
      > /tmp/requirements.txt; \
    /tools/bin/pip install --quiet --constraint constraints.txt setuptools; \
    /tools/bin/pip --python /opt/gpu-xds/bin/python install --quiet --no-compile --only-binary :all: \
      --constraint constraints.txt --requirement /tmp/requirements.txt
COPY protos ./protos
COPY fleet_metrics ./fleet_metrics
COPY fleet_notify ./fleet_notify
COPY sidecar_agent ./sidecar_agent
COPY xds_server ./xds_server
RUN set -eu; \
    /tools/bin/pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir /wheels .; \
    /tools/bin/pip --python /opt/gpu-xds/bin/python install --quiet --no-compile --no-deps --no-index \
      /wheels/*.whl; \
    # Compiled here, because nothing can be written at run time; by content, because times differ.
    /opt/gpu-xds/bin/python -m compileall -q -f -j 1 --invalidation-mode unchecked-hash \
      /opt/gpu-xds/lib; \
    mkdir -p /owned/state /owned/config /owned/gpus

FROM ${PYTHON_IMAGE} AS product
COPY --from=build /opt/gpu-xds /opt/gpu-xds
# Volumes take over the owner of the folder that they are mounted on.
COPY --from=build --chown=10001:10001 /owned/state /var/lib/gpu-xds
COPY --from=build --chown=10001:10001 /owned/config /etc/gpu-xds
ENV PATH=/opt/gpu-xds/bin:/usr/local/bin:/usr/bin:/bin HOME=/var/lib/gpu-xds \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 XDS_SERVER_STATE_DIR=/var/lib/gpu-xds
# A number, so that Kubernetes can tell that it is not root.
USER 10001:10001
CMD ["xds-server", "--help"]

FROM ${PYTHON_IMAGE} AS nvml-stub
RUN apt-get update -qq \
    && apt-get install -qq -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY demo/__init__.py /src/demo/__init__.py
COPY demo/nvmlstub /src/demo/nvmlstub
RUN PYTHONPATH=/src python3 -c \
    "from pathlib import Path; from demo import nvmlstub; assert nvmlstub.build(Path('/opt/nvml'))"

FROM product AS demo
COPY --from=nvml-stub /opt/nvml /opt/nvml
COPY --from=build --chown=10001:10001 /owned/gpus /run/gpus
COPY demo /opt/demo/demo
ENV PYTHONPATH=/opt/demo

# Without a --target it is the product that is built.
FROM product AS runtime
