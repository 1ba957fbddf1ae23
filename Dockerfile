# compoclip on a CPU: docker build -t compoclip . ; docker run --rm -v "$PWD:/work" compoclip demo --out demo-out
FROM python:3.13-slim AS build
COPY . /source
RUN pip wheel /source /source/world --no-deps --wheel-dir /wheels

FROM python:3.13-slim
COPY requirements.lock /
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /requirements.lock --index-url https://download.pytorch.org/whl/cpu \
        --extra-index-url https://pypi.org/simple torch \
    && pip install --no-cache-dir --constraint /requirements.lock /wheels/*.whl
RUN useradd --create-home user && install --directory --owner=user /work
USER user
WORKDIR /work
ENTRYPOINT ["compoclip"]
