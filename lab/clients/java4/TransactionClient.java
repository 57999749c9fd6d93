import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/** Transactions of Kafka 4's producer: every third is aborted. Prints the finalized level, the producer's epoch at the end and the group's offset. */
public class TransactionClient {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        int transactions = Integer.parseInt(arguments[2]);
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", "second-protocol");
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
                KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int number = 0; number < transactions; number++) {
                producer.beginTransaction();
                for (int record = 0; record < 4; record++) {
                    producer.send(new ProducerRecord<>(topic, record % 2, null, number + "-" + record));
                }
                Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(number));
                producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata("second-group"));
                if (number % 3 == 2) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            var level = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version");
            var described = admin.describeTransactions(List.of("second-protocol")).all().get().get("second-protocol");
            var offset = admin.listConsumerGroupOffsets("second-group").partitionsToOffsetAndMetadata().get().get(new TopicPartition(topic, 0));
            System.out.println(level.maxVersionLevel() + " " + described.producerEpoch() + " " + offset.offset());
        }
    }
}
