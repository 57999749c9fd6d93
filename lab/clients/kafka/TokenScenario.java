import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreateDelegationTokenOptions;
import org.apache.kafka.clients.admin.DescribeDelegationTokenOptions;
import org.apache.kafka.clients.admin.ExpireDelegationTokenOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RenewDelegationTokenOptions;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.token.delegation.DelegationToken;
import org.apache.kafka.common.security.token.delegation.TokenInformation;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What Apache's client does with delegation tokens, one line for each step, without what differs between two runs. Arguments: the bootstrap
 * server of a listener with SCRAM, that of a PLAINTEXT one, and the password of all users. */
public final class TokenScenario {
    private static final long HOUR_MS = 3_600_000;
    private static String bootstrap;
    private static String plaintext;
    private static String password;
    private static final List<String> issued = new ArrayList<>();

    private static Map<String, Object> options(String user, String secret, String mechanism, boolean byToken) {
        Map<String, Object> options = new HashMap<>();
        options.put("bootstrap.servers", bootstrap);
        options.put("security.protocol", "SASL_PLAINTEXT");
        options.put("sasl.mechanism", mechanism);
        options.put("sasl.jaas.config", "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"" + user + "\" password=\""
            + secret + "\"" + (byToken ? " tokenauth=\"true\"" : "") + ";");
        return options;
    }

    private static Admin as(String user) {
        return Admin.create(options(user, password, "SCRAM-SHA-256", false));
    }

    private static KafkaPrincipal user(String name) {
        return new KafkaPrincipal("User", name);
    }

    private static void step(String name, Callable<Object> action) throws Exception {
        String outcome;
        try {
            outcome = String.valueOf(action.call());
        } catch (ExecutionException failed) {
            outcome = failed.getCause().getClass().getSimpleName() + ": " + failed.getCause().getMessage();
        } catch (org.apache.kafka.common.KafkaException failed) {
            outcome = failed.getClass().getSimpleName() + ": " + failed.getMessage();
        }
        System.out.println(name + ": " + outcome);
    }

    private static DelegationToken create(Admin admin, CreateDelegationTokenOptions options) throws Exception {
        DelegationToken made = admin.createDelegationToken(options).delegationToken().get();
        issued.add(made.tokenInfo().tokenId());
        return made;
    }

    private static String shown(DelegationToken token) {
        TokenInformation info = token.tokenInfo();
        return "token " + issued.indexOf(info.tokenId()) + " of " + info.owner() + " for " + info.tokenRequester() + ", renewers " + info.renewers()
            + ", lives " + (info.maxTimestamp() - info.issueTimestamp()) + ", secret of " + token.hmac().length;
    }

    private static String all(Admin admin, List<KafkaPrincipal> owners) throws Exception {
        DescribeDelegationTokenOptions options = new DescribeDelegationTokenOptions();
        Collection<DelegationToken> found = admin.describeDelegationToken(owners == null ? options : options.owners(owners)).delegationTokens().get();
        return found.stream().map(TokenScenario::shown).sorted().collect(Collectors.joining("; "));
    }

    private static Object produced(Map<String, Object> options, String topic) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer())) {
            return producer.send(new ProducerRecord<>(topic, new byte[1])).get().topic();
        }
    }

    private static void allow(Admin root, ResourceType kind, String name, String principal, AclOperation operation) throws Exception {
        AccessControlEntry entry = new AccessControlEntry(principal, "*", operation, AclPermissionType.ALLOW);
        root.createAcls(List.of(new AclBinding(new ResourcePattern(kind, name, PatternType.LITERAL), entry))).all().get();
    }

    /** A renewed token without the error of the time that the request took. */
    private static Object hours(long expiresMs, long nowMs) {
        return Math.round((expiresMs - nowMs) / (double) HOUR_MS) + " hours";
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        plaintext = arguments[1];
        password = arguments[2];
        try (Admin root = as("root"); Admin alice = as("alice"); Admin bob = as("bob"); Admin carol = as("carol")) {
            root.createTopics(List.of(new NewTopic("logs", Optional.of(1), Optional.empty()), new NewTopic("other", Optional.of(1), Optional.empty()))).all().get();
            allow(root, ResourceType.TOPIC, "logs", "User:alice", AclOperation.WRITE);
            allow(root, ResourceType.USER, "User:dave", "User:carol", AclOperation.CREATE_TOKENS);
            CreateDelegationTokenOptions wanted = new CreateDelegationTokenOptions().renewers(List.of(user("bob"))).maxlifeTimeMs(5 * HOUR_MS);
            DelegationToken token = create(alice, wanted);
            String id = token.tokenInfo().tokenId();
            System.out.println(shown(token));
            step("the box's lifetime", () -> shown(create(bob, new CreateDelegationTokenOptions())));
            step("for dave by alice", () -> shown(create(alice, new CreateDelegationTokenOptions().owner(user("dave")))));
            step("for dave by root", () -> shown(create(root, new CreateDelegationTokenOptions().owner(user("dave")))));
            step("for dave by carol", () -> shown(create(carol, new CreateDelegationTokenOptions().owner(user("dave")))));
            KafkaPrincipal group = new KafkaPrincipal("Group", "bob");
            step("a group as renewer", () -> shown(create(alice, new CreateDelegationTokenOptions().renewers(List.of(group)))));
            for (Admin admin : List.of(alice, bob, carol)) {
                long now = System.currentTimeMillis();
                step("renew", () -> hours(admin.renewDelegationToken(token.hmac(), new RenewDelegationTokenOptions().renewTimePeriodMs(2 * HOUR_MS)).expiryTimestamp().get(), now));
                step("renew beyond its life", () -> hours(admin.renewDelegationToken(token.hmac(), new RenewDelegationTokenOptions().renewTimePeriodMs(90 * HOUR_MS)).expiryTimestamp().get(), now));
                step("renew by default", () -> hours(admin.renewDelegationToken(token.hmac()).expiryTimestamp().get(), now));
            }
            step("renew nothing", () -> alice.renewDelegationToken(new byte[64]).expiryTimestamp().get());
            step("expire nothing", () -> alice.expireDelegationToken(new byte[64]).expiryTimestamp().get());
            allow(root, ResourceType.DELEGATION_TOKEN, id, "User:carol", AclOperation.DESCRIBE);
            allow(root, ResourceType.USER, "User:bob", "User:carol", AclOperation.DESCRIBE_TOKENS);
            for (Admin admin : List.of(alice, bob, carol, root)) {
                for (List<KafkaPrincipal> owners : Arrays.<List<KafkaPrincipal>>asList(null, List.of(), List.of(user("dave")), List.of(user("bob"), user("alice")), List.of(user("nobody")))) {
                    step("describe " + owners, () -> all(admin, owners));
                }
            }
            for (String mechanism : List.of("SCRAM-SHA-256", "SCRAM-SHA-512")) {
                Map<String, Object> byToken = options(id, token.hmacAsBase64String(), mechanism, true);
                step("write by token", () -> produced(byToken, "logs"));
                step("write elsewhere by token", () -> produced(byToken, "other"));
                try (Admin limited = Admin.create(byToken)) {
                    step("create by token", () -> shown(create(limited, new CreateDelegationTokenOptions())));
                    step("renew by token", () -> limited.renewDelegationToken(token.hmac()).expiryTimestamp().get());
                    step("expire by token", () -> limited.expireDelegationToken(token.hmac()).expiryTimestamp().get());
                    step("describe by token", () -> all(limited, null));
                }
                step("a wrong secret", () -> produced(options(id, "wrong", mechanism, true), "logs"));
                step("a wrong id", () -> produced(options("wrong", token.hmacAsBase64String(), mechanism, true), "logs"));
                step("a token as a user", () -> produced(options(id, token.hmacAsBase64String(), mechanism, false), "logs"));
            }
            try (Admin anonymous = Admin.create(Map.of("bootstrap.servers", plaintext))) {
                step("create without a login", () -> shown(create(anonymous, new CreateDelegationTokenOptions())));
                step("describe without a login", () -> all(anonymous, null));
            }
            long now = System.currentTimeMillis();
            step("expire later", () -> hours(bob.expireDelegationToken(token.hmac(), new ExpireDelegationTokenOptions().expiryTimePeriodMs(HOUR_MS)).expiryTimestamp().get(), now));
            step("expire by carol", () -> carol.expireDelegationToken(token.hmac(), new ExpireDelegationTokenOptions().expiryTimePeriodMs(-1)).expiryTimestamp().get());
            step("expire now", () -> hours(alice.expireDelegationToken(token.hmac(), new ExpireDelegationTokenOptions().expiryTimePeriodMs(-1)).expiryTimestamp().get(), now));
            step("expire again", () -> alice.expireDelegationToken(token.hmac()).expiryTimestamp().get());
            DelegationToken brief = create(alice, new CreateDelegationTokenOptions().maxlifeTimeMs(500));
            Thread.sleep(600);
            step("renew what has expired", () -> alice.renewDelegationToken(brief.hmac()).expiryTimestamp().get());
            step("expire what has expired", () -> alice.expireDelegationToken(brief.hmac(), new ExpireDelegationTokenOptions().expiryTimePeriodMs(HOUR_MS)).expiryTimestamp().get());
            step("write by an ended token", () -> produced(options(id, token.hmacAsBase64String(), "SCRAM-SHA-256", true), "logs"));
        }
    }
}
