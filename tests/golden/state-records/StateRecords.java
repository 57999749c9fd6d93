import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.coordinator.group.generated.*;
import org.apache.kafka.coordinator.transaction.generated.*;

/**
 * Writes one record of every kind and version that Kafka 3.9.1 keeps in its state topics, by its own classes: name, version, bytes in hex.
 *
 * java -cp ".venv/clients/jars/*" tests/golden/state-records/StateRecords.java > tests/golden/state-records/records.txt
 */
public class StateRecords {
    static void show(String name, int version, Message message) {
        ByteBuffer bytes = MessageUtil.toVersionPrefixedByteBuffer((short) version, message);
        StringBuilder hex = new StringBuilder();
        while (bytes.hasRemaining()) hex.append(String.format("%02x", bytes.get()));
        System.out.println(name + " " + version + " " + hex);
    }
    public static void main(String[] args) {
        Uuid id = new Uuid(0x0102030405060708L, 0x090a0b0c0d0e0f10L);
        for (int v = 0; v <= 1; v++) show("OffsetCommitKey", v, new OffsetCommitKey().setGroup("group").setTopic("syslog").setPartition(3));
        show("GroupMetadataKey", 2, new GroupMetadataKey().setGroup("group"));
        show("ConsumerGroupMetadataKey", 3, new ConsumerGroupMetadataKey().setGroupId("group"));
        show("ConsumerGroupPartitionMetadataKey", 4, new ConsumerGroupPartitionMetadataKey().setGroupId("group"));
        show("ConsumerGroupMemberMetadataKey", 5, new ConsumerGroupMemberMetadataKey().setGroupId("group").setMemberId("member"));
        show("ConsumerGroupTargetAssignmentMetadataKey", 6, new ConsumerGroupTargetAssignmentMetadataKey().setGroupId("group"));
        show("ConsumerGroupTargetAssignmentMemberKey", 7, new ConsumerGroupTargetAssignmentMemberKey().setGroupId("group").setMemberId("member"));
        show("ConsumerGroupCurrentMemberAssignmentKey", 8, new ConsumerGroupCurrentMemberAssignmentKey().setGroupId("group").setMemberId("member"));
        int oh = OffsetCommitValue.HIGHEST_SUPPORTED_VERSION;
        for (int v = 0; v <= oh; v++) {
            OffsetCommitValue o = new OffsetCommitValue().setOffset(70).setMetadata("note\u00e4").setCommitTimestamp(1700000000000L);
            if (v >= 3) o.setLeaderEpoch(5);
            if (v == 1) o.setExpireTimestamp(1700000600000L);
            show("OffsetCommitValue", v, o);
        }
        for (int v = 0; v <= GroupMetadataValue.HIGHEST_SUPPORTED_VERSION; v++) {
            GroupMetadataValue.MemberMetadata m = new GroupMetadataValue.MemberMetadata().setMemberId("member").setClientId("client").setClientHost("/192.0.2.7")
                .setSessionTimeout(45000).setSubscription(new byte[] {1, 2, 3}).setAssignment(new byte[] {4, 5});
            if (v >= 1) m.setRebalanceTimeout(300000);
            if (v >= 3) m.setGroupInstanceId("instance");
            GroupMetadataValue g = new GroupMetadataValue().setProtocolType("consumer").setGeneration(9).setProtocol("range").setLeader("member").setMembers(List.of(m, m.duplicate()));
            if (v >= 2) g.setCurrentStateTimestamp(1700000000000L);
            show("GroupMetadataValue", v, g);
        }
        show("EmptyGroupMetadataValue", 3, new GroupMetadataValue().setProtocolType("consumer").setGeneration(10).setProtocol(null).setLeader(null).setCurrentStateTimestamp(1700000000000L));
        show("ConsumerGroupMetadataValue", 0, new ConsumerGroupMetadataValue().setEpoch(11));
        show("ConsumerGroupPartitionMetadataValue", 0, new ConsumerGroupPartitionMetadataValue().setTopics(List.of(
            new ConsumerGroupPartitionMetadataValue.TopicMetadata().setTopicId(id).setTopicName("syslog").setNumPartitions(2).setPartitionMetadata(List.of(
                new ConsumerGroupPartitionMetadataValue.PartitionMetadata().setPartition(1).setRacks(List.of("r1", "r2")))))));
        ConsumerGroupMemberMetadataValue mm = new ConsumerGroupMemberMetadataValue().setInstanceId("instance").setRackId(null).setClientId("client").setClientHost("/192.0.2.7")
            .setSubscribedTopicNames(List.of("syslog", "audit")).setSubscribedTopicRegex("sys.*").setRebalanceTimeoutMs(300000).setServerAssignor("uniform");
        show("ConsumerGroupMemberMetadataValue", 0, mm);
        show("ClassicMemberMetadataValue", 0, mm.duplicate().setClassicMemberMetadata(new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata().setSessionTimeoutMs(45000)
            .setSupportedProtocols(List.of(new ConsumerGroupMemberMetadataValue.ClassicProtocol().setName("range").setMetadata(new byte[] {1, 2, 3})))));
        show("ConsumerGroupTargetAssignmentMetadataValue", 0, new ConsumerGroupTargetAssignmentMetadataValue().setAssignmentEpoch(11));
        show("ConsumerGroupTargetAssignmentMemberValue", 0, new ConsumerGroupTargetAssignmentMemberValue().setTopicPartitions(List.of(
            new ConsumerGroupTargetAssignmentMemberValue.TopicPartition().setTopicId(id).setPartitions(List.of(0, 300)))));
        show("ConsumerGroupCurrentMemberAssignmentValue", 0, new ConsumerGroupCurrentMemberAssignmentValue().setMemberEpoch(11).setPreviousMemberEpoch(10).setState((byte) 1)
            .setAssignedPartitions(List.of(new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions().setTopicId(id).setPartitions(List.of(0))))
            .setPartitionsPendingRevocation(List.of(new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions().setTopicId(id).setPartitions(List.of(1, 2)))));
        show("TransactionLogKey", 0, new TransactionLogKey().setTransactionalId("transactional"));
        for (int v = 0; v <= TransactionLogValue.HIGHEST_SUPPORTED_VERSION; v++) {
            TransactionLogValue t = new TransactionLogValue().setProducerId(4000).setProducerEpoch((short) 7).setTransactionTimeoutMs(60000).setTransactionStatus((byte) 1)
                .setTransactionPartitions(List.of(new TransactionLogValue.PartitionsSchema().setTopic("audit").setPartitionIds(List.of(0)),
                    new TransactionLogValue.PartitionsSchema().setTopic("syslog").setPartitionIds(List.of(0, 3))))
                .setTransactionLastUpdateTimestampMs(1700000000500L).setTransactionStartTimestampMs(1700000000000L);
            show("TransactionLogValue", v, t);
            show("EmptyTransactionLogValue", v, t.duplicate().setTransactionStatus((byte) 0).setTransactionPartitions(null).setTransactionStartTimestampMs(-1));
        }
    }
}
