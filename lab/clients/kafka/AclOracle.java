import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Answers questions with Kafka's StandardAuthorizer. Lines of fields separated by tabs: "new" (super users, allow everyone), "acl" (resource, pattern,
 * name, principal, host, operation, permission), "may" (principal, host, operation, resource, name), "any" (principal, host, operation, resource).
 */
public class AclOracle {
    record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() { return "PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return ""; }
        public int correlationId() { return 0; }
    }

    public static void main(String[] arguments) throws Exception {
        StandardAuthorizer authorizer = null;
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        boolean loaded = false;
        StringBuilder answers = new StringBuilder();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] field = line.split("\t", -1);
            if (field[0].equals("new")) {
                authorizer = new StandardAuthorizer();
                authorizer.configure(Map.of("super.users", field[1], "allow.everyone.if.no.acl.found", field[2], "node.id", "1"));
                acls = new HashMap<>();
                loaded = false;
                continue;
            }
            if (field[0].equals("acl")) {
                acls.put(new Uuid(1, acls.size() + 1), new StandardAcl(ResourceType.valueOf(field[1]), field[3], PatternType.valueOf(field[2]), field[4], field[5],
                    AclOperation.valueOf(field[6]), AclPermissionType.valueOf(field[7])));
                continue;
            }
            if (!loaded) {
                authorizer.loadSnapshot(acls);
                authorizer.completeInitialLoad();
                loaded = true;
            }
            Context context = new Context(SecurityUtils.parseKafkaPrincipal(field[1]), InetAddress.getByName(field[2]));
            AclOperation operation = AclOperation.valueOf(field[3]);
            ResourceType resource = ResourceType.valueOf(field[4]);
            AuthorizationResult result;
            if (field[0].equals("any")) {
                result = authorizer.authorizeByResourceType(context, operation, resource);
            } else {
                ResourcePattern pattern = new ResourcePattern(resource, field[5], PatternType.LITERAL);
                result = authorizer.authorize(context, List.of(new Action(operation, pattern, 1, false, false))).get(0);
            }
            answers.append(result == AuthorizationResult.ALLOWED ? "1" : "0");
        }
        System.out.println(answers);
    }
}
