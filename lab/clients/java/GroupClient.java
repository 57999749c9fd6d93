import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Apache's consumers as members of groups, several in one process, behind lines of JSON: a command a line in, an answer a line out, until the input
 * ends. Each consumer polls in a thread of its own and commits what it was given before it polls again. Commands: start (name, topic, options),
 * look (name: its partitions, the values that came since, whether it is over), stop (name).
 */
public final class GroupClient {
    private static final ObjectMapper JSON = new ObjectMapper();

    private static final class Member extends Thread {
        private final KafkaConsumer<String, String> consumer;
        private final String topic;
        private Set<Integer> partitions = new TreeSet<>();
        private List<String> values = new ArrayList<>();
        private String error;
        private volatile boolean stops;

        Member(Map<String, Object> options, String topic) {
            this.topic = topic;
            consumer = new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer());
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                consumer.subscribe(List.of(topic));
                while (!stops) {
                    List<String> came = new ArrayList<>();
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                        came.add(record.value());
                    }
                    if (!came.isEmpty()) {
                        commit();
                    }
                    Set<Integer> now = new TreeSet<>();
                    for (TopicPartition partition : consumer.assignment()) {
                        now.add(partition.partition());
                    }
                    synchronized (this) {
                        values.addAll(came);
                        partitions = now;
                    }
                }
            } catch (WakeupException woken) {
                // It is to stop.
            } catch (Throwable thrown) {
                synchronized (this) {
                    error = thrown.toString();
                }
            } finally {
                consumer.close(Duration.ofSeconds(5));
            }
        }

        /** A commit that a rebalance overtakes is repeated by whoever reads the records again. */
        private void commit() {
            try {
                consumer.commitSync(Duration.ofSeconds(10));
            } catch (org.apache.kafka.clients.consumer.CommitFailedException | org.apache.kafka.common.errors.RebalanceInProgressException late) {
                // Records may come twice then.
            }
        }

        synchronized void look(ObjectNode answer) {
            ArrayNode of = answer.putArray("partitions");
            partitions.forEach(of::add);
            ArrayNode came = answer.putArray("values");
            values.forEach(came::add);
            values = new ArrayList<>();
            if (error != null) {
                answer.put("failure", error);
            }
        }

        void end() throws InterruptedException {
            stops = true;
            join(10_000);
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        Map<String, Member> members = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode command = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode();
            String name = command.get("name").asText();
            switch (command.get("do").asText()) {
                case "start" -> {
                    Map<String, Object> options = new HashMap<>();
                    options.put("bootstrap.servers", arguments[0]);
                    options.put("client.id", name);
                    options.put("auto.offset.reset", "earliest");
                    options.put("enable.auto.commit", false);
                    command.get("options").fields().forEachRemaining(entry -> options.put(entry.getKey(), entry.getValue().asText()));
                    Member member = new Member(options, command.get("topic").asText());
                    members.put(name, member);
                    member.start();
                }
                case "look" -> members.get(name).look(answer);
                case "stop" -> {
                    members.get(name).end();
                    members.get(name).look(answer);
                }
                default -> throw new IllegalArgumentException(line);
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
        for (Member member : members.values()) {
            member.end();
        }
    }
}
