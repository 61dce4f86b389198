# Stands in for zookeeper:3.9: one server on port 2181 that keeps its data in /data.
FROM loadmanager-base/debian
RUN apt-get update \
    && apt-get install -y --no-install-recommends libzookeeper-java openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 1000 zookeeper \
    && install -d -o zookeeper -g zookeeper /data /conf
COPY --chown=zookeeper zookeeper-entrypoint /usr/local/bin/zookeeper-entrypoint
USER zookeeper
WORKDIR /data
VOLUME /data
EXPOSE 2181
ENTRYPOINT ["/usr/local/bin/zookeeper-entrypoint"]
