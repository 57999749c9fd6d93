/*
 * Reads partitions with large Fetch requests, one in flight on each connection, into one buffer per connection that is used again and again.
 *
 *   fetcher HOST PORT CONNECTIONS SECONDS REPLY_BYTES_MAX OFFSET_AT ERROR_AT RECORDS_AT REQUEST_FILE...
 *
 * Connection i sends the request of file i modulo their number, from where its last reply ended, and from the offset in its file again once it has
 * reached the high watermark. SECONDS 0: each connection reads its partition once, and the checksum of every batch is computed. Always: error code 0, the records
 * begin at the offset that was asked for, and each batch begins where the one before it ended. Prints "ready" when it is connected, begins at the next
 * line on stdin, prints one line of JSON; its exit code is 0 only if every reply was right.
 *
 * Owned by loadtest/generators/large_fetcher.py, which compiles it. One thread, epoll. Weak spot: the positions are those of Fetch 11 (fetch_frame.py).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CORRELATION_IN_REQUEST = 8, CORRELATION_IN_REPLY = 4, EVENTS = 64, SILENCE_MS = 15000, REQUEST_MAX = 1024,
    LATENCIES_US = 1 << 20, /* longer ones count as this */
    /* Of a batch: base offset 8, length 4, leader epoch 4, magic 1, checksum 4, attributes 2, last offset delta 4, … records 4. */
    LENGTH_AT = 8, HEAD = 12, CHECKSUM_AT = 17, CHECKSUMMED_AT = 21, LAST_DELTA_AT = 23, BATCH_MIN = 61,
};

struct connection {
    int descriptor, request_size, in_flight, wrapped;
    char request[REQUEST_MAX];
    uint32_t correlation;
    int64_t first_offset, next_offset, asked_ns;
    char *reply;
    size_t received;
};

static size_t reply_bytes_max;
static int offset_at, error_at, records_at, checks_all;
static uint64_t replies, record_bytes, records, receives;
static uint32_t latencies[LATENCIES_US];

static void die(const char *words) {
    fprintf(stderr, "fetcher: %s%s%s\n", words, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static void refuse(const char *words) {
    errno = 0;
    die(words);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static uint32_t word32(const char *bytes) {
    uint32_t word;
    memcpy(&word, bytes, 4);
    return be32toh(word);
}

static int64_t word64(const char *bytes) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    return (int64_t)be64toh(word);
}

__attribute__((target("sse4.2"))) static uint32_t crc32c(const char *bytes, size_t size) {
    uint64_t crc = 0xFFFFFFFF, word;
    for (; size >= 8; bytes += 8, size -= 8) {
        memcpy(&word, bytes, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    for (; size; bytes++, size--) crc = __builtin_ia32_crc32qi((uint32_t)crc, (unsigned char)*bytes);
    return (uint32_t)crc ^ 0xFFFFFFFF;
}

static void connect_to(struct connection *c, const char *host, int port, int poller) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int one = 1;
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) refuse("HOST must be an IPv4 address");
    c->descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->descriptor < 0 || connect(c->descriptor, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(c->descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (epoll_ctl(poller, EPOLL_CTL_ADD, c->descriptor, &event)) die("epoll_ctl");
}

static void ask(struct connection *c) {
    uint64_t offset = htobe64((uint64_t)c->next_offset);
    uint32_t correlation = htobe32(++c->correlation);
    memcpy(c->request + offset_at, &offset, 8);
    memcpy(c->request + CORRELATION_IN_REQUEST, &correlation, 4);
    c->asked_ns = now_ns();
    if (send(c->descriptor, c->request, c->request_size, MSG_NOSIGNAL) != c->request_size) die("send");
    c->in_flight = 1;
    c->received = 0;
}

/* Walks the batches of a whole reply; one that was cut off at the end is asked for again. */
static void check_reply(struct connection *c) {
    int error = (int16_t)((unsigned char)c->reply[error_at] << 8 | (unsigned char)c->reply[error_at + 1]);
    int64_t high_watermark = word64(c->reply + error_at + 2);
    const char *batch = c->reply + records_at, *end = c->reply + c->received;
    int64_t from = c->next_offset;
    int64_t us = (now_ns() - c->asked_ns) / 1000;
    latencies[us < LATENCIES_US ? us : LATENCIES_US - 1]++;
    if (word32(c->reply + CORRELATION_IN_REPLY) != c->correlation) refuse("a reply is for another request");
    if (error) {
        fprintf(stderr, "fetcher: error code %d\n", error);
        exit(1);
    }
    if (word32(c->reply + records_at - 4) != (uint32_t)(end - batch)) refuse("the records do not fill the reply");
    while (end - batch >= BATCH_MIN) {
        int64_t base = word64(batch);
        int32_t last_delta = (int32_t)word32(batch + LAST_DELTA_AT);
        size_t size = HEAD + (size_t)word32(batch + LENGTH_AT);
        if (size > (size_t)(end - batch)) break;
        if (base != c->next_offset || last_delta < 0) refuse("a batch does not begin where the one before it ended");
        if (checks_all && crc32c(batch + CHECKSUMMED_AT, size - CHECKSUMMED_AT) != word32(batch + CHECKSUM_AT)) refuse("a batch has a wrong checksum");
        records += last_delta + 1;
        c->next_offset = base + last_delta + 1;
        batch += size;
    }
    if (c->next_offset == from) refuse("a reply has no whole batch");
    replies++;
    record_bytes += end - (c->reply + records_at);
    if (c->next_offset == high_watermark) {
        c->next_offset = c->first_offset;
        c->wrapped = 1;
    }
}

static int percentile(double share) {
    uint64_t wanted = (uint64_t)(replies * share), seen = 0;
    for (int us = 0; us < LATENCIES_US; us++)
        if ((seen += latencies[us]) > wanted) return us;
    return LATENCIES_US;
}

/* Takes what is there; true when the reply is whole. */
static int receive(struct connection *c) {
    size_t wanted = c->received < 4 ? 4 : 4 + (size_t)word32(c->reply);
    if (wanted > reply_bytes_max) refuse("a reply is larger than was allowed");
    ssize_t count = recv(c->descriptor, c->reply + c->received, wanted - c->received, 0);
    receives++;
    if (count == 0) refuse("the broker closed a connection");
    if (count < 0) die("recv");
    c->received += count;
    return c->received > 4 && c->received == 4 + (size_t)word32(c->reply);
}

int main(int count, char **words) {
    if (count < 10) {
        fprintf(stderr, "usage: fetcher HOST PORT CONNECTIONS SECONDS REPLY_BYTES_MAX OFFSET_AT ERROR_AT RECORDS_AT REQUEST_FILE...\n");
        return 2;
    }
    int connection_count = atoi(words[3]), asked = 0;
    double seconds = atof(words[4]);
    struct connection *connections = calloc(connection_count, sizeof *connections);
    struct epoll_event events[EVENTS];
    int poller = epoll_create1(EPOLL_CLOEXEC);
    char line[16];
    checks_all = seconds == 0;
    reply_bytes_max = (size_t)atoll(words[5]);
    offset_at = atoi(words[6]), error_at = atoi(words[7]), records_at = atoi(words[8]);
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        FILE *file = fopen(words[9 + i % (count - 9)], "rb");
        if (!file) die("no request file");
        c->request_size = (int)fread(c->request, 1, REQUEST_MAX, file);
        fclose(file);
        c->first_offset = c->next_offset = word64(c->request + offset_at);
        c->reply = malloc(reply_bytes_max);
        memset(c->reply, 0, reply_bytes_max); /* its pages are touched now and not in the run */
        connect_to(c, words[1], atoi(words[2]), poller);
    }
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    int64_t started = now_ns(), stop_at = started + (int64_t)(seconds * 1e9);
    for (int i = 0; i < connection_count; i++, asked++) ask(&connections[i]);
    while (asked) {
        int ready = epoll_wait(poller, events, EVENTS, SILENCE_MS);
        if (ready == 0) refuse("the broker no longer answers");
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c->in_flight) refuse("something comes that nobody asked for, or a connection ended");
            if (!receive(c)) continue;
            check_reply(c);
            c->in_flight = 0;
            if (checks_all ? !c->wrapped : now_ns() < stop_at) ask(c);
            else asked--;
        }
    }
    printf("{\"replies\": %llu, \"record_bytes\": %llu, \"records\": %llu, \"receives\": %llu, \"p50_us\": %d, \"p99_us\": %d, \"seconds\": %.6f}\n",
           (unsigned long long)replies, (unsigned long long)record_bytes, (unsigned long long)records, (unsigned long long)receives, percentile(0.5),
           percentile(0.99), (now_ns() - started) / 1e9);
    return 0;
}
