import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Short transactions, each begun as soon as the commit of the last one is answered, over all partitions of a topic. Several producers at a time. Prints
 * how many were committed; every failure goes to stderr with its cause.
 */
public class BackToBackTransactions {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        int producers = Integer.parseInt(arguments[2]);
        int transactions = Integer.parseInt(arguments[3]);
        int partitions = Integer.parseInt(arguments[4]);
        AtomicInteger committed = new AtomicInteger();
        ConcurrentLinkedQueue<String> failures = new ConcurrentLinkedQueue<>();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            String name = "back-to-back-" + number;
            Thread thread = new Thread(() -> produce(bootstrap, topic, name, transactions, partitions, committed, failures));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        failures.forEach(System.err::println);
        System.out.println(committed.get());
    }

    private static void produce(
            String bootstrap, String topic, String name, int transactions, int partitions, AtomicInteger committed, ConcurrentLinkedQueue<String> failures) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", name);
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int transaction = 0; transaction < transactions; transaction++) {
                try {
                    producer.beginTransaction();
                    for (int partition = 0; partition < partitions; partition++) {
                        producer.send(new ProducerRecord<>(topic, partition, null, name + "-" + transaction + "-" + partition));
                    }
                    producer.commitTransaction();
                    committed.incrementAndGet();
                } catch (KafkaException problem) {
                    failures.add(name + "-" + transaction + ": " + problem + ", caused by " + problem.getCause());
                    producer.abortTransaction();
                }
            }
        } catch (KafkaException problem) {
            failures.add(name + " gave up: " + problem + ", caused by " + problem.getCause());
        }
    }
}
