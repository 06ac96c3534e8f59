# A worker on a Linux CPU: what a Mac worker is, on MLX's CPU backend.
FROM python:3.12.10-slim-bookworm

# MLX would call g++ to compile kernels, which this image has not.
ENV MLX_DISABLE_COMPILE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY pipeline pipeline
COPY workers workers
COPY tasks tasks
COPY migrations migrations
RUN pip install --constraint requirements/lock.txt hatchling \
    && pip install --constraint requirements/lock.txt --no-build-isolation ".[postgres,s3]"

RUN useradd --system --uid 1000 --home-dir /var/lib/pipeline --create-home pipeline
USER pipeline
ENTRYPOINT ["pipeline"]
CMD ["worker"]
