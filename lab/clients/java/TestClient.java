import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache's client behind lines of JSON: a command a line in, an answer a line out, until the input ends. The commands are those of
 * lab/foreign_clients.py. Weak spot: producers are made anew for each command, because the codec is theirs.
 */
public final class TestClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final String bootstrap;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Admin admin;

    private TestClient(String bootstrap) {
        this.bootstrap = bootstrap;
        Map<String, Object> options = options();
        options.put("enable.auto.commit", false);
        options.put("max.partition.fetch.bytes", 8 << 20);
        options.put("default.api.timeout.ms", 10000);
        options.put("allow.auto.create.topics", false);
        // At the end of a log the next fetch is under way already, and a consumer that is given another topic waits for it.
        options.put("fetch.max.wait.ms", Integer.getInteger("fetch.max.wait.ms", 500));
        options.put("isolation.level", System.getProperty("isolation.level", "read_uncommitted"));
        consumer = new KafkaConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        admin = Admin.create(options());
    }

    private Map<String, Object> options() {
        Map<String, Object> options = new HashMap<>();
        options.put("bootstrap.servers", bootstrap);
        options.put("client.id", "golden");
        return options;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        TestClient client = new TestClient(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                client.answer(JSON.readTree(line), answer);
            } catch (Throwable thrown) {
                Throwable cause = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
                answer.put("error_code", Errors.forException(cause).code());
                answer.put("error", cause.toString());
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
        client.consumer.close(Duration.ofSeconds(2));
        client.admin.close(Duration.ofSeconds(2));
    }

    private void answer(JsonNode command, ObjectNode answer) throws Exception {
        switch (command.get("do").asText()) {
            case "produce" -> produce(command);
            case "fetch" -> fetch(command, answer);
            case "offset" -> offset(command, answer);
            case "create" -> create(command);
            case "delete" -> admin.deleteTopics(List.of(command.get("topic").asText())).all().get();
            case "delete_records" -> deleteRecords(command, answer);
            default -> throw new IllegalArgumentException(command.toString());
        }
    }

    private void deleteRecords(JsonNode command, ObjectNode answer) throws Exception {
        TopicPartition partition = new TopicPartition(command.get("topic").asText(), 0);
        RecordsToDelete before = RecordsToDelete.beforeOffset(command.get("before").asLong());
        answer.put("low_watermark", admin.deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition).get().lowWatermark());
    }

    private static byte[] bytes(JsonNode text) {
        return text == null || text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private void produce(JsonNode command) throws Exception {
        Map<String, Object> options = options();
        options.put("enable.idempotence", false);
        options.put("acks", "all");
        options.put("compression.type", command.get("codec").asText());
        options.put("linger.ms", 20);
        options.put("max.request.size", 8 << 20);
        options.put("buffer.memory", 16 << 20);
        options.put("max.block.ms", 10000);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode record : command.get("records")) {
                List<Header> headers = new ArrayList<>();
                for (JsonNode header : record.get("headers")) {
                    headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
                }
                Long timestamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
                sent.add(producer.send(new ProducerRecord<>(
                    command.get("topic").asText(), 0, timestamp, bytes(record.get("key")), bytes(record.get("value")), headers)));
            }
            for (Future<RecordMetadata> future : sent) {
                future.get();
            }
        }
    }

    private void fetch(JsonNode command, ObjectNode answer) {
        TopicPartition partition = new TopicPartition(command.get("topic").asText(), 0);
        consumer.assign(List.of(partition));
        consumer.seek(partition, command.get("offset").asLong());
        ArrayNode records = answer.putArray("records");
        long deadline = System.nanoTime() + 15_000_000_000L;
        while (records.size() < command.get("count").asInt() && System.nanoTime() < deadline) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                ObjectNode one = records.addObject();
                one.put("offset", record.offset());
                one.put("key", record.key());
                one.put("value", record.value());
                one.put("timestamp", record.timestamp());
                one.put("timestamp_type", record.timestampType().id);
                ArrayNode headers = one.putArray("headers");
                for (Header header : record.headers()) {
                    headers.addArray().add(header.key()).add(header.value());
                }
            }
        }
    }

    private void offset(JsonNode command, ObjectNode answer) {
        TopicPartition partition = new TopicPartition(command.get("topic").asText(), 0);
        JsonNode at = command.get("at");
        Long found;
        if (at.isNumber()) {
            OffsetAndTimestamp result = consumer.offsetsForTimes(Map.of(partition, at.asLong())).get(partition);
            found = result == null ? null : result.offset();
        } else if (at.asText().equals("earliest")) {
            found = consumer.beginningOffsets(List.of(partition)).get(partition);
        } else {
            found = consumer.endOffsets(List.of(partition)).get(partition);
        }
        answer.put("offset", found);
    }

    private void create(JsonNode command) throws Exception {
        Map<String, String> config = new HashMap<>();
        command.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        admin.createTopics(List.of(new NewTopic(command.get("topic").asText(), 1, (short) 1).configs(config))).all().get();
    }
}
