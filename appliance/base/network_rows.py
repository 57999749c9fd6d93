"""The settings of listeners, TLS, logins and connections; `setting_rows` lists them. Names are
Kafka's where Kafka has the setting.
"""

from __future__ import annotations

from appliance.base.setting_row import GIB, HOUR, INT32_MAX, INT64_MAX, KIB, MIB, SECOND, SettingRow

_LISTENER_ROWS = (
    SettingRow(
        "listeners",
        "",
        "",
        "listeners for Kafka clients, as in PLAINTEXT://127.0.0.1:9091,CLIENTS://0.0.0.0:9092. If it is not set: PLAINTEXT on --listen and --kafka-port",
        "",
    ),
    SettingRow(
        "advertised.listeners",
        "",
        "",
        "what clients of a listener connect to, in the form of listeners. A listener that is not here advertises its own address, or --advertise if that is "
        "any address",
        "",
    ),
    SettingRow(
        "listener.security.protocol.map",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "",
        "security protocol of each listener, as in CLIENTS:SASL_SSL: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
        "",
    ),
    SettingRow(
        "inter.broker.listener.name",
        "",
        "",
        "the listener through which boxes, the console and the command connect: PLAINTEXT, or SSL with `ssl.client.auth` required, where each box shows the "
        "certificate of its key store, or SASL_SSL, where each logs in as `inter.broker.user`. If it is not set: PLAINTEXT, or the only PLAINTEXT one",
        "",
    ),
    SettingRow("inter.broker.user", "", "", "the user as which boxes log in to each other on a SASL_SSL listener; needs an authorizer", ""),
    SettingRow("inter.broker.password.file", "", "", "file with the password of that user in its first line; it is read for each connection", ""),
    SettingRow(
        "sasl.mechanism.inter.broker.protocol",
        "SCRAM-SHA-512",
        "",
        "how that user logs in; the listener must have it among its mechanisms. PLAIN sends the password to what has a certificate of the other box",
        "",
        choices=("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"),
    ),
)

_TLS_ROWS = (
    SettingRow(
        "ssl.keystore.location",
        "",
        "",
        "PEM file with the private key (not encrypted) and the certificate chain of SSL listeners. Changed files are loaded within a second",
        "",
    ),
    SettingRow("ssl.truststore.location", "", "", "PEM file with the authorities that sign certificates of clients", ""),
    SettingRow("ssl.crl.location", "", "", "PEM file with the revoked certificates of each of these authorities; empty: none is revoked", ""),
    SettingRow("ssl.client.auth", "none", "", "whether clients show a certificate", "", choices=("none", "requested", "required")),
    SettingRow("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "", "versions of TLS", ""),
    SettingRow("ssl.cipher.suites", "", "", "cipher suites of TLS 1.2, by the names of OpenSSL; empty: its secure ones", ""),
    SettingRow(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "",
        "how the subject of a client's certificate becomes its principal: RULE:PATTERN/REPLACEMENT/[LU], DEFAULT is the whole subject (RFC 2253)",
        "",
    ),
)

CENTURY_MS = 100 * 365 * 24 * HOUR
"""Times of tokens are sums with the time of day, and have 64 bits."""

_SASL_ROWS = (
    SettingRow(
        "sasl.enabled.mechanisms",
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "",
        "how clients of SASL listeners authenticate: SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN, with the same users, and OAUTHBEARER",
        "",
    ),
    SettingRow(
        "sasl.plain.without.tls",
        False,
        "",
        "true: PLAIN and OAUTHBEARER are allowed on SASL_PLAINTEXT listeners, where the network carries passwords and tokens in clear text",
        "passwords can be read on the network",
    ),
    SettingRow("sasl.oauthbearer.jwks.endpoint.url", "", "", "the keys that verify tokens of OAUTHBEARER (a JWK set): https://… or file:///…", ""),
    SettingRow("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, "ms", "the keys are read again after this time", "", 1_000, INT64_MAX),
    SettingRow("sasl.oauthbearer.expected.issuer", "", "", "the claim iss that tokens must have", ""),
    SettingRow("sasl.oauthbearer.expected.audience", "", "", "tokens must have one of these (with commas) in the claim aud", ""),
    SettingRow("sasl.oauthbearer.expected.scope", "", "", "the scope that tokens must have; empty: none", ""),
    SettingRow("sasl.oauthbearer.sub.claim.name", "sub", "", "the claim of a token that is the user", ""),
    SettingRow("sasl.oauthbearer.scope.claim.name", "scope", "", "the claim of a token with its scopes", ""),
    SettingRow("sasl.oauthbearer.clock.skew.seconds", 30, "s", "by which the clock of the issuer may differ", "", 0, 3_600),
    SettingRow(
        "connections.max.reauth.ms",
        0,
        "ms",
        "clients of SASL listeners must authenticate again within this time, or are closed; 0: never. A deleted user is out after it",
        "deleted users stay connected for longer",
        0,
        INT64_MAX,
    ),
    SettingRow(
        "delegation.token.secret.key.file",
        "",
        "",
        "file with the secret that delegation tokens are made from, in its first line, the same on all boxes (Kafka: delegation.token.secret.key); empty: none",
        "",
    ),
    SettingRow("delegation.token.max.lifetime.ms", 7 * 24 * HOUR, "ms", "no token is valid for longer, however often it is renewed", "", 1, CENTURY_MS),
    SettingRow("delegation.token.expiry.time.ms", 24 * HOUR, "ms", "a token is valid for this time, unless it is renewed", "", 1, CENTURY_MS),
    SettingRow(
        "delegation.token.expiry.check.interval.ms", HOUR, "ms", "expired tokens are removed this often; they cannot be used before that", "", 1_000, INT64_MAX
    ),
    SettingRow(
        "connection.failed.authentication.delay.ms",
        100,
        "ms",
        "a failed authentication is answered, and its connection closed, after this time",
        "guesses of passwords are slower, and connections stay open for longer",
        0,
        10 * SECOND,
    ),
)

NETWORK_ROWS = (
    *_LISTENER_ROWS,
    *_TLS_ROWS,
    *_SASL_ROWS,
    SettingRow(
        "socket.request.max.bytes",
        32 * MIB,
        "bytes",
        "largest request; a connection that announces more is closed",
        "arena space for one request",
        64 * KIB,
        GIB,
    ),
    SettingRow("fetch.max.bytes", 55 * MIB, "bytes", "largest answer to one fetch", "longer turns for one consumer", 1024, GIB),
    SettingRow(
        "fetch.residency",
        "auto",
        "",
        "how an acceptor sees what is in the page cache: cachestat (Linux 6.5 and later), mincore, or the better one that the kernel has",
        "",
        choices=("auto", "cachestat", "mincore"),
    ),
    SettingRow(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "",
        "fetch sessions that one acceptor keeps; clients beyond go on without one",
        "about 1 KB each and 600 bytes for each partition in it",
        0,
        100_000,
    ),
    SettingRow(
        "inter.broker.allowed.networks",
        "127.0.0.0/8, ::1",
        "",
        "networks whose connections count as those of boxes, beside the addresses of the registered boxes: what boxes send each other (follower "
        "fetches, transaction markers) is refused from elsewhere. On a listener between boxes with TLS only certificates of boxes count, on every "
        "other one addresses. Name here from where a box connects with another address than it advertises",
        "more machines may pass for a box",
    ),
    SettingRow(
        "cluster.networks",
        "",
        "",
        "networks of all boxes and members of ZooKeeper, and of what resolves their names: under systemd, processes of a box that has others connect to "
        "no other address. Empty: to any",
        "more addresses that a process which was taken over reaches",
    ),
    SettingRow(
        "authorizer.class.name",
        "",
        "",
        "`org.apache.kafka.metadata.authorizer.StandardAuthorizer` (or Kafka 3.9's `kafka.security.authorizer.AclAuthorizer`, which means the same here): "
        "clients need access control entries, and so do the other boxes of a cluster (`All` for their addresses; "
        "never as a super user, since every client without a certificate is User:ANONYMOUS); "
        "empty: every client may do everything",
        "",
    ),
    SettingRow(
        "super.users", "", "", "principals that may do everything, separated by semicolons: User:alice;User:CN=box1,O=Acme", "more principals without limits"
    ),
    SettingRow(
        "allow.everyone.if.no.acl.found",
        False,
        "",
        "true: with an authorizer, resources that no access control entry names are open to all",
        "resources are open until named",
    ),
    SettingRow("max.connections", 10_000, "", "client connections of one acceptor", "descriptors and memory", 1, 1_000_000),
    SettingRow("max.connections.per.ip", 2_000, "", "client connections from one address", "one client may crowd out others", 1, 1_000_000),
    SettingRow(
        "max.connection.creation.rate",
        INT32_MAX,
        "",
        "new connections a second that one acceptor takes; above it, clients wait",
        "clients that connect again and again crowd out others",
        1,
        INT32_MAX,
    ),
    SettingRow("connections.max.idle.ms", 600 * SECOND, "ms", "a connection without a request for this long is closed", "descriptors", 1000, INT64_MAX),
    SettingRow(
        "request.frame.timeout.ms", 30 * SECOND, "ms", "time in which an announced request must arrive whole", "arena space held by slow clients", 100, HOUR
    ),
)
