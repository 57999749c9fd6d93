import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** For capture_groups.py: everything that Apache's client asks of coordinators. Arguments: bootstrap, topic, group, transactional id. */
public class GroupClient {
    private static Properties properties(String bootstrap, String... more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("client.id", "golden");
        properties.put("enable.metrics.push", "false");
        for (int at = 0; at < more.length; at += 2) properties.put(more[at], more[at + 1]);
        return properties;
    }

    private static void await(KafkaFuture<?> future) throws Exception {
        try {
            future.get(10, java.util.concurrent.TimeUnit.SECONDS);
        } catch (java.util.concurrent.ExecutionException refused) {
            System.err.println(refused.getCause());
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String group, String... more) {
        Properties properties = properties(bootstrap, "group.id", group, "enable.auto.commit", "false", "auto.offset.reset", "earliest");
        for (int at = 0; at < more.length; at += 2) properties.put(more[at], more[at + 1]);
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], topic = arguments[1], group = arguments[2], transactionalId = arguments[3];
        TopicPartition partition = new TopicPartition(topic, 0);
        Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(partition, new OffsetAndMetadata(1, "note"));
        try (var producer = new KafkaProducer<>(properties(bootstrap, "transactional.id", transactionalId), new ByteArraySerializer(), new ByteArraySerializer());
                var classic = consumer(bootstrap, group, "heartbeat.interval.ms", "100")) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "key".getBytes(), "line".getBytes())).get();
            classic.subscribe(List.of(topic));
            for (int poll = 0; poll < 8; poll++) classic.poll(Duration.ofMillis(250));
            classic.commitSync(offsets);
            producer.sendOffsetsToTransaction(offsets, classic.groupMetadata());
            producer.commitTransaction();
        }
        try (var newer = consumer(bootstrap, group, "group.protocol", "consumer")) {
            newer.subscribe(List.of(topic));
            for (int poll = 0; poll < 8; poll++) newer.poll(Duration.ofMillis(250));
        }
        try (Admin admin = Admin.create(properties(bootstrap))) {
            await(admin.listConsumerGroups().all());
            await(admin.describeConsumerGroups(List.of(group)).all());
            await(admin.listConsumerGroupOffsets(group).all());
            await(admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all());
            await(admin.deleteConsumerGroups(List.of(group)).all());
            await(admin.listTransactions().all());
            await(admin.describeTransactions(List.of(transactionalId)).all());
            await(admin.describeProducers(List.of(partition)).all());
        }
    }
}
