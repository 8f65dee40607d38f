# Two stages: the first installs hash-locked packages and the gateway, the second has only the result.
# The base needs python3 (3.11 or later) with venv. No network is used but pip's.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /build
RUN python3 -m venv /opt/dragoman
COPY requirements-cluster.lock ./
RUN /opt/dragoman/bin/pip install --no-cache-dir --require-hashes -r requirements-cluster.lock
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/dragoman/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/dragoman/bin/pip uninstall --yes hatchling editables pathspec pluggy tomlkit trove-classifiers packaging pip \
    && mkdir /data

FROM ${BASE}
COPY --from=build /opt/dragoman /opt/dragoman
COPY --from=build --chown=65532:65532 /data /data
ENV PATH=/opt/dragoman/bin:$PATH \
    DRAGOMAN_DATA=/data \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /data
VOLUME /data
EXPOSE 8484
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
    CMD ["/opt/dragoman/bin/python3", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8484/ready', timeout=2)"]
ENTRYPOINT ["dragoman"]
CMD ["serve", "--host", "0.0.0.0"]
