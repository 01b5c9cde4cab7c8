# The image of every process of a fleet: the command says which one it is.
#
#   docker build -t chordage .
#   docker build -t shop --build-context room=/srv/shop .    # with the packages of /srv/shop/requirements.txt
#
# The room is mounted at /room. docs/how-to/deploy.md has the rest.

FROM python:3.13-slim AS base

FROM base AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/chordage && /opt/chordage/bin/pip install --no-cache-dir '.[postgres,mcp]'

# A room without packages of its own; --build-context room=FOLDER replaces it.
FROM base AS room

FROM base
COPY --from=build /opt/chordage /opt/chordage
ENV PATH=/opt/chordage/bin:$PATH PYTHONUNBUFFERED=1
RUN --mount=type=bind,from=room,target=/tmp/room \
    test ! -f /tmp/room/requirements.txt || pip install --no-cache-dir -r /tmp/room/requirements.txt
# The number is fixed, so that a folder of the host can belong to this user: chown 10001 tasks
RUN useradd --uid 10001 --create-home chordage && mkdir /room /state && chown chordage /room /state
# As a number, or Kubernetes cannot see that it is not root.
USER 10001
WORKDIR /room
ENV CHORDAGE_ROOM=/room CHORDAGE_STATE=/state
CMD ["chordage", "--help"]
