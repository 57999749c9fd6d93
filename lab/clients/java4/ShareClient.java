import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a share group until its input ends. In the mode "explicit" a value says what becomes of its record: "reject" and "release" do so, "twice" is
 * released at its first delivery, "stop" lets a client with a sixth argument wait for ever; all others are accepted. Prints "got partition offset deliveries value" for each
 * record and, when the broker has agreed, "done partition offset", or "released partition offset".
 */
public class ShareClient {
    private static volatile boolean running = true;
    private static boolean waits;

    public static void main(String[] arguments) throws Exception {
        waits = arguments.length > 5;
        boolean explicit = arguments[3].equals("explicit");
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("share.acknowledgement.mode", arguments[3]);
        settings.put("max.poll.records", arguments[4]);
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings);
        consumer.subscribe(List.of(arguments[2]));
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                }
            } catch (java.io.IOException gone) {
                // as at the end
            }
            running = false;
            consumer.wakeup();
        });
        input.setDaemon(true);
        input.start();
        try {
            while (running) {
                take(consumer, consumer.poll(Duration.ofMillis(500)), explicit);
            }
        } catch (WakeupException ended) {
            // input has ended
        }
        consumer.close(Duration.ofSeconds(10));
    }

    private static void take(KafkaShareConsumer<String, String> consumer, ConsumerRecords<String, String> records, boolean explicit) throws InterruptedException {
        StringBuilder done = new StringBuilder();
        for (ConsumerRecord<String, String> record : records) {
            int deliveries = record.deliveryCount().orElse((short) -1);
            say("got " + record.partition() + " " + record.offset() + " " + deliveries + " " + record.value().strip());
            AcknowledgeType type = switch (record.value()) {
                case "reject" -> AcknowledgeType.REJECT;
                case "release" -> AcknowledgeType.RELEASE;
                case "twice" -> deliveries == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
                default -> AcknowledgeType.ACCEPT;
            };
            if (waits && record.value().equals("stop")) {
                Thread.sleep(Long.MAX_VALUE);
            }
            if (explicit) {
                consumer.acknowledge(record, type);
            }
            done.append(explicit && type == AcknowledgeType.RELEASE ? "released " : "done ");
            done.append(record.partition()).append(' ').append(record.offset()).append('\n');
        }
        if (!records.isEmpty()) {
            var failures = consumer.commitSync().values().stream().filter(failure -> failure.isPresent()).toList();
            say(failures.isEmpty() ? done.toString().stripTrailing() : "failed " + failures);
        }
    }

    private static void say(String line) {
        if (!line.isEmpty()) {
            System.out.println(line);
            System.out.flush();
        }
    }
}
