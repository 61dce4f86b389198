import java.util.*;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.impl.PulsarClientImpl;
import org.apache.pulsar.client.impl.conf.ProducerConfigurationData;

/** Sends to segments of scalable topics: SERVICE_URL MESSAGES_PER_S SEGMENT... until it is ended. */
public class SegmentSender {
    public static void main(String[] given) throws Exception {
        PulsarClientImpl client = (PulsarClientImpl) PulsarClient.builder().serviceUrl(given[0]).build();
        double perSecond = Double.parseDouble(given[1]);
        List<Producer<byte[]>> producers = new ArrayList<>();
        for (String name : Arrays.copyOfRange(given, 2, given.length)) {
            ProducerConfigurationData conf = new ProducerConfigurationData();
            conf.setTopicName(name);
            conf.setBatchingEnabled(false);
            producers.add(client.createSegmentProducerAsync(conf, Schema.BYTES).get());
        }
        System.out.println("sending");
        byte[] payload = new byte[100];
        long began = System.nanoTime();
        for (long sent = 0;; sent++) {
            long due = began + (long) (sent * 1e9 / perSecond);
            for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                Thread.sleep(wait / 1_000_000, (int) (wait % 1_000_000));
            }
            for (Producer<byte[]> producer : producers) {
                producer.sendAsync(payload);
            }
        }
    }
}
