# The tool with the real AISBench:
#     docker build -t ais-bench-prefix-cache .
#     docker run --rm ais-bench-prefix-cache demo
# docs/containers.md says how it meets a server.
FROM python:3.11-slim

# AISBench needs torch, and of torch only what runs on a CPU.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

COPY constraints.txt LICENSE README.md MULTIMODAL.md pyproject.toml /source/
COPY src /source/src
RUN pip install --no-cache-dir --index-url ${TORCH_INDEX} "$(grep '^torch==' /source/constraints.txt)" \
    && pip install --no-cache-dir -c /source/constraints.txt "/source[demo,multimodal]" \
    && useradd --create-home --uid 1000 benchmark \
    && install -d -o benchmark /work

USER benchmark
WORKDIR /work
ENTRYPOINT ["ais-bench-prefix-cache"]
CMD ["--help"]
