/*
 * A producer or consumer of librdkafka without a language binding, which would be the slower half of it.
 *
 *   librdkafka_client LIBRARY produce|consume BOOTSTRAP TOPIC PARTITIONS RECORDS VALUE_BYTES PROPERTY=VALUE...
 *
 * produce: RECORDS values of VALUE_BYTES without a key, in runs of 500 to a partition, each value beginning with its place in its partition
 * (eight digits); ends when all are acknowledged. The rest of a value is zeros, or (PROPERTY text=1) one of some thousand different log lines, so that compressing means something. consume: assigns all partitions from offset 0 and ends after RECORDS records; each must have the size, the next offset
 * of its partition, and, where the topic was written by one producer of ours, the place that says the same (PROPERTY places=1).
 * Prints "ready" once it knows the topic, begins at the next line on stdin, prints one line of JSON; times are of the monotonic clock.
 *
 * Owned by loadtest/benchmarks, which compile it. librdkafka is opened as it lies in confluent-kafka's wheel, where no headers are, so what is used of
 * its stable C interface is declared here. Weak spot: all values are in memory already, and nothing is done with those that come.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PLACE_BYTES = 8, POOL_BYTES = 16 << 20, PRODUCER = 0, CONSUMER = 1, COPY = 2, BLOCK = 4, RUN_LENGTH = 500, BATCH = 2000, PARTITIONS_MAX = 1024, SILENCE_MS = 20000, FLUSH_MS = 60000 };

typedef struct message {
    int error;
    void *topic;
    int32_t partition;
    void *payload;
    size_t size;
    void *key;
    size_t key_size;
    int64_t offset;
    void *opaque;
} message;

static void *(*conf_new)(void);
static int (*conf_set)(void *, const char *, const char *, char *, size_t);
static void (*conf_set_dr_msg_cb)(void *, void (*)(void *, const message *, void *));
static void *(*client_new)(int, void *, char *, size_t);
static void *(*topic_new)(void *, const char *, void *);
static int (*metadata)(void *, int, void *, const void **, int);
static int (*produce_one)(void *, int32_t, int, void *, size_t, const void *, size_t, void *);
static int (*poll_client)(void *, int);
static int (*flush_client)(void *, int);
static int (*out_queue)(void *);
static const char *(*error_text)(int);
static int (*last_error)(void);
static void *(*list_new)(int);
static void *(*list_add)(void *, const char *, int32_t);
static int (*list_set_offset)(void *, const char *, int32_t, int64_t);
static int (*assign)(void *, const void *);
static void *(*consumer_queue)(void *);
static ssize_t (*consume_batch)(void *, int, message **, size_t);
static void (*message_destroy)(message *);

static uint64_t errors;

static void die(const char *words, const char *more) {
    fprintf(stderr, "librdkafka_client: %s %s\n", words, more ? more : "");
    exit(1);
}

static void open_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) die("cannot open librdkafka:", dlerror());
#define FIND(pointer, name) \
    if (!(*(void **)&pointer = dlsym(library, name))) die("librdkafka has no", name)
    FIND(conf_new, "rd_kafka_conf_new");
    FIND(conf_set, "rd_kafka_conf_set");
    FIND(conf_set_dr_msg_cb, "rd_kafka_conf_set_dr_msg_cb");
    FIND(client_new, "rd_kafka_new");
    FIND(topic_new, "rd_kafka_topic_new");
    FIND(metadata, "rd_kafka_metadata");
    FIND(produce_one, "rd_kafka_produce");
    FIND(poll_client, "rd_kafka_poll");
    FIND(flush_client, "rd_kafka_flush");
    FIND(out_queue, "rd_kafka_outq_len");
    FIND(error_text, "rd_kafka_err2str");
    FIND(last_error, "rd_kafka_last_error");
    FIND(list_new, "rd_kafka_topic_partition_list_new");
    FIND(list_add, "rd_kafka_topic_partition_list_add");
    FIND(list_set_offset, "rd_kafka_topic_partition_list_set_offset");
    FIND(assign, "rd_kafka_assign");
    FIND(consumer_queue, "rd_kafka_queue_get_consumer");
    FIND(consume_batch, "rd_kafka_consume_batch_queue");
    FIND(message_destroy, "rd_kafka_message_destroy");
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void on_delivery(void *client, const message *delivered, void *opaque) {
    (void)client;
    (void)opaque;
    if (!delivered->error) return;
    if (!errors) fprintf(stderr, "librdkafka_client: not delivered: %s\n", error_text(delivered->error));
    errors++;
}

static void await_go(void) {
    char line[16];
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(1);
}

static void report(int64_t records, int64_t started) {
    printf("{\"records\": %lld, \"errors\": %llu, \"started_ns\": %lld, \"ended_ns\": %lld}\n", (long long)records, (unsigned long long)errors,
           (long long)started, (long long)now_ns());
    fflush(stdout);
    /* Not through librdkafka's orderly end: a group or a queue that still wants something would only lengthen the run. */
    _Exit(errors ? 1 : 0);
}

/* Lines as a web server writes them; more bytes of different ones than lz4 and zstd look back at. */
static void fill_with_lines(char *pool, size_t size) {
    uint64_t chance = 88172645463325252u;
    size_t used = 0;
    while (used < size) {
        char line[256];
        chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
        int length = snprintf(line, sizeof line, "host-%u app[%u]: request served status=%u bytes=%u took=%ums path=/v1/items/%llx user=%u ", (unsigned)(chance % 50),
                              (unsigned)(chance >> 8 & 0x7fff), chance % 11 ? 200u : 404u, (unsigned)(chance >> 16 & 0x3fff), (unsigned)(chance >> 24 & 0xff),
                              (unsigned long long)(chance >> 32), (unsigned)(chance >> 20 & 0xffff));
        size_t part = (size_t)length < size - used ? (size_t)length : size - used;
        memcpy(pool + used, line, part);
        used += part;
    }
}

/* A place is eight decimal digits, so that a value of text is text from its first byte on. */
static void write_place(char *value, int64_t place) {
    for (int digit = PLACE_BYTES - 1; digit >= 0; digit--, place /= 10) value[digit] = '0' + place % 10;
}

static int64_t read_place(const char *value) {
    int64_t place = 0;
    for (int digit = 0; digit < PLACE_BYTES; digit++) place = place * 10 + value[digit] - '0';
    return place;
}

static void produce(void *client, void *topic, int partitions, int64_t records, size_t value_bytes, int is_text) {
    int64_t values = is_text && value_bytes < POOL_BYTES ? POOL_BYTES / value_bytes : 1;
    char *pool = calloc(values, value_bytes), *value;
    if (!pool) die("no memory", NULL);
    if (is_text) fill_with_lines(pool, values * value_bytes);
    int64_t places[PARTITIONS_MAX] = {0}, sent = 0;
    await_go();
    int64_t started = now_ns();
    for (int partition = 0; sent < records; partition = (partition + 1) % partitions) {
        for (int run = 0; run < RUN_LENGTH && sent < records; run++, sent++) {
            value = pool + sent % values * value_bytes;
            write_place(value, places[partition]);
            if (produce_one(topic, partition, COPY | BLOCK, value, value_bytes, NULL, 0, NULL)) die("a record was refused:", error_text(last_error()));
            places[partition]++;
        }
        poll_client(client, 0);
    }
    flush_client(client, FLUSH_MS);
    if (out_queue(client)) die("not all records were acknowledged in time", NULL);
    report(records, started);
}

static void consume(void *client, const char *topic_name, int partitions, int64_t records, size_t value_bytes, int has_places) {
    static message *batch[BATCH];
    int64_t next[PARTITIONS_MAX] = {0}, received = 0;
    void *list = list_new(partitions);
    for (int partition = 0; partition < partitions; partition++) {
        list_add(list, topic_name, partition);
        list_set_offset(list, topic_name, partition, 0);
    }
    await_go();
    int64_t started = now_ns();
    int failed = assign(client, list);
    if (failed) die("assign failed:", error_text(failed));
    void *queue = consumer_queue(client);
    while (received < records) {
        ssize_t count = consume_batch(queue, SILENCE_MS, batch, BATCH);
        if (count <= 0) die("no more records came", NULL);
        for (ssize_t i = 0; i < count; i++) {
            const message *m = batch[i];
            if (m->error) die("an error instead of a record:", error_text(m->error));
            if (m->size != value_bytes) die("a value has another size", NULL);
            if (m->offset != next[m->partition]++) die("an offset is missing or comes twice", NULL);
            if (has_places && read_place(m->payload) != m->offset) die("a value is another one than was written there", NULL);
            message_destroy(batch[i]);
        }
        received += count;
    }
    report(received, started);
}

int main(int count, char **words) {
    char text[512];
    int has_places = 0, is_text = 0;
    if (count < 8) die("usage: librdkafka_client LIBRARY produce|consume BOOTSTRAP TOPIC PARTITIONS RECORDS VALUE_BYTES PROPERTY=VALUE...", NULL);
    int is_producer = !strcmp(words[2], "produce"), partitions = atoi(words[5]);
    int64_t records = atoll(words[6]);
    size_t value_bytes = (size_t)atoll(words[7]);
    if (partitions < 1 || partitions > PARTITIONS_MAX || value_bytes < PLACE_BYTES) die("wrong numbers", NULL);
    open_library(words[1]);
    void *conf = conf_new();
    conf_set(conf, "bootstrap.servers", words[3], text, sizeof text);
    for (int i = 8; i < count; i++) {
        char *equals = strchr(words[i], '=');
        if (!equals) die("not PROPERTY=VALUE:", words[i]);
        *equals = 0;
        if (!strcmp(words[i], "places")) has_places = atoi(equals + 1);
        else if (!strcmp(words[i], "text")) is_text = atoi(equals + 1);
        else if (conf_set(conf, words[i], equals + 1, text, sizeof text)) die("a property is refused:", text);
    }
    if (is_producer) conf_set_dr_msg_cb(conf, on_delivery);
    void *client = client_new(is_producer ? PRODUCER : CONSUMER, conf, text, sizeof text);
    if (!client) die("no client:", text);
    void *topic = topic_new(client, words[4], NULL);
    const void *known;
    int failed = metadata(client, 0, topic, &known, 30000);
    if (failed) die("the topic is not known:", error_text(failed));
    if (is_producer) produce(client, topic, partitions, records, value_bytes, is_text);
    consume(client, words[4], partitions, records, value_bytes, has_places);
}
