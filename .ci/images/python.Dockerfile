# Stands in for python:3.12-slim: `python3`, `pip`, `venv` and CA certificates.
FROM loadmanager-base/debian
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
# The host's certificates: pip has to trust whatever the host trusts.
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
CMD ["python3"]
