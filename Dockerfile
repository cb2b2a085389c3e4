# One image for both services of compose.yaml: the API (`ragstone serve --no-ui`) and the chat UI (`python -m ui`).
#
# RAGSTONE_TORCH_INDEX names an index with CPU builds of torch, where the default one has none: without it the image
# carries the CUDA libraries and is some gigabytes larger.

FROM python:3.11-slim AS build
ARG RAGSTONE_EXTRA=cpu
ARG RAGSTONE_TORCH_INDEX=""
# More of what pyproject.toml names as extras, such as qdrant-client.
ARG RAGSTONE_PACKAGES=""
ENV PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /opt/ragstone
# What the installed packages depend on, first: a change of our code does not install them again.
COPY pyproject.toml constraints-cpu.txt constraints-gpu.txt LICENSE README.md ./
COPY deploy/install.py deploy/
# The editable install looks at the packages' folders; what is in them comes below.
RUN for package in app app/cli app/evaluation app/routes engine kernels retrieval retrieval/loaders ui; do mkdir -p $package && touch $package/__init__.py; done \
    && python deploy/install.py
RUN [ -z "$RAGSTONE_PACKAGES" ] || .venv/bin/python -m pip install --constraint constraints-cpu.txt $RAGSTONE_PACKAGES
# Some packages carry files that are no modules of this Python, so a failure here says nothing.
RUN .venv/bin/python -m compileall -q -j 0 .venv/lib || true
COPY app app
COPY engine engine
COPY kernels kernels
COPY retrieval retrieval
COPY ui ui
COPY data data
# The user that runs them cannot write beside them, so they are compiled here.
RUN .venv/bin/python -m compileall -q app engine kernels retrieval ui

FROM python:3.11-slim
RUN useradd --system --uid 10001 --home-dir /data ragstone && install -d -o ragstone -g ragstone /data
COPY --from=build /opt/ragstone /opt/ragstone
ENV PATH=/opt/ragstone/.venv/bin:$PATH RAGSTONE_DATA=/data RAGSTONE_HOST=0.0.0.0 PYTHONUNBUFFERED=1
USER ragstone
WORKDIR /data
VOLUME /data
EXPOSE 8080 7860
CMD ["ragstone", "serve"]
