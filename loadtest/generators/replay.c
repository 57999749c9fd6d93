/*
 * Replays pre-built Kafka request frames over many connections and checks every reply: the broker's own ceiling, without a client library.
 *
 *   replay HOST PORT CONNECTIONS IN_FLIGHT SECONDS REPLY_BYTES ERROR_AT STRIDE FRAME_FILE...
 *
 * Connection i sends the frame of file i modulo their number, then that of file i + STRIDE, and so on (STRIDE 0: again and again), with a running correlation id, never more than
 * IN_FLIGHT unanswered. As many frames as replies came in go out with one send, so under load system calls are fewer than requests. A reply
 * must have REPLY_BYTES bytes (size field included), the next correlation id of its connection, and error code 0 at byte ERROR_AT. After SECONDS it sends no
 * more and waits for the rest. Prints one line of JSON; its exit code is 0 only if every reply was there and right.
 *
 * Owned by loadtest/generators/replayer.py, which compiles it. One thread, epoll. Weak spot: replies of one size only, so one API and version at a time.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
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
    CORRELATION_IN_REQUEST = 8, /* size 4, api key 2, api version 2 */
    CORRELATION_IN_REPLY = 4,
    EVENTS = 256,
    LATENCIES_US = 1 << 20, /* longer ones count as this */
    SILENCE_SECONDS = 15
};

struct frame {
    char *bytes;
    int size;
};

struct connection {
    int descriptor;
    struct frame *frame;
    int frame_number;
    uint32_t next_sent, next_answered; /* correlation ids */
    char *out;
    int out_start, out_end;
    char *in;
    int in_end;
    int waits_for_room;
    int64_t *sent_ns; /* by correlation id modulo in_flight */
};

static struct frame *frames;
static int frame_count, frame_bytes_max, stride, in_flight, reply_bytes, error_at, epoll_descriptor;
static uint64_t requests, replies, errors, sends, receives;
static int first_error;
static uint32_t latencies[LATENCIES_US];

static void die(const char *words) {
    fprintf(stderr, "replay: %s%s%s\n", words, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static uint32_t big_endian(const char *bytes) {
    uint32_t word;
    memcpy(&word, bytes, 4);
    return ntohl(word);
}

static struct frame read_frame(const char *path) {
    FILE *file = fopen(path, "rb");
    struct frame frame;
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    frame.size = (int)ftell(file);
    rewind(file);
    frame.bytes = malloc(frame.size);
    if (fread(frame.bytes, 1, frame.size, file) != (size_t)frame.size) die(path);
    fclose(file);
    if (frame.size < 14 || (int)big_endian(frame.bytes) + 4 != frame.size) {
        errno = 0;
        die("a frame file does not begin with its size");
    }
    return frame;
}

static void connect_to(struct connection *c, const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int one = 1;
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        errno = 0;
        die("HOST must be an IPv4 address");
    }
    c->descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->descriptor < 0 || connect(c->descriptor, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(c->descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->descriptor, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, c->descriptor, &event)) die("epoll_ctl");
}

static void watch_for_room(struct connection *c, int waits) {
    struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = c};
    if (waits == c->waits_for_room) return;
    c->waits_for_room = waits;
    if (epoll_ctl(epoll_descriptor, EPOLL_CTL_MOD, c->descriptor, &event)) die("epoll_ctl");
}

static void flush(struct connection *c) {
    while (c->out_start < c->out_end) {
        ssize_t count = send(c->descriptor, c->out + c->out_start, c->out_end - c->out_start, MSG_NOSIGNAL);
        sends++;
        if (count < 0) {
            if (errno != EAGAIN) die("send");
            watch_for_room(c, 1);
            return;
        }
        c->out_start += count;
    }
    c->out_start = c->out_end = 0;
    watch_for_room(c, 0);
}

/* Fills the window: what is unsent and unanswered together are at most in_flight frames, hence the size of the buffer. */
static void send_more(struct connection *c) {
    int64_t now = now_ns();
    if (c->out_start) {
        memmove(c->out, c->out + c->out_start, c->out_end - c->out_start);
        c->out_end -= c->out_start;
        c->out_start = 0;
    }
    while (c->next_sent - c->next_answered < (uint32_t)in_flight) {
        uint32_t correlation = htonl(c->next_sent);
        memcpy(c->out + c->out_end, c->frame->bytes, c->frame->size);
        memcpy(c->out + c->out_end + CORRELATION_IN_REQUEST, &correlation, 4);
        c->out_end += c->frame->size;
        c->sent_ns[c->next_sent % in_flight] = now;
        c->next_sent++;
        c->frame_number = (c->frame_number + stride) % frame_count;
        c->frame = &frames[c->frame_number];
        requests++;
    }
    flush(c);
}

static void wrong_reply(const struct connection *c, const char *reply, int size, const char *words) {
    fprintf(stderr, "replay: reply %u of a connection %s:", c->next_answered, words);
    for (int i = 0; i < size && i < 120; i++) fprintf(stderr, " %02x", (unsigned char)reply[i]);
    fprintf(stderr, "\n");
    exit(1);
}

static void check_reply(struct connection *c, const char *reply, int64_t now) {
    int64_t us = (now - c->sent_ns[c->next_answered % in_flight]) / 1000;
    int error = (int16_t)((unsigned char)reply[error_at] << 8 | (unsigned char)reply[error_at + 1]);
    if (big_endian(reply + CORRELATION_IN_REPLY) != c->next_answered) wrong_reply(c, reply, reply_bytes, "is for another request");
    latencies[us < LATENCIES_US ? us : LATENCIES_US - 1]++;
    if (error) {
        errors++;
        if (!first_error) first_error = error;
    }
    c->next_answered++;
    replies++;
}

static void receive(struct connection *c) {
    /* One byte more than can be asked for, so that a broker which says too much is noticed. */
    ssize_t count = recv(c->descriptor, c->in + c->in_end, in_flight * reply_bytes + 1 - c->in_end, 0);
    int position = 0;
    int64_t now = now_ns();
    receives++;
    if (count < 0 && errno == EAGAIN) return;
    if (count == 0) errno = 0;
    if (count <= 0) die("the broker closed a connection");
    c->in_end += count;
    while (c->in_end - position >= 4) {
        if ((int)big_endian(c->in + position) + 4 != reply_bytes) wrong_reply(c, c->in + position, c->in_end - position, "has another size");
        if (c->in_end - position < reply_bytes) break;
        if (c->next_answered == c->next_sent) wrong_reply(c, c->in + position, reply_bytes, "answers nothing");
        check_reply(c, c->in + position, now);
        position += reply_bytes;
    }
    memmove(c->in, c->in + position, c->in_end - position);
    c->in_end -= position;
}

static int percentile(double share) {
    uint64_t wanted = (uint64_t)(replies * share), seen = 0;
    for (int us = 0; us < LATENCIES_US; us++)
        if ((seen += latencies[us]) > wanted) return us;
    return LATENCIES_US;
}

int main(int count, char **words) {
    if (count < 10) {
        fprintf(stderr, "usage: replay HOST PORT CONNECTIONS IN_FLIGHT SECONDS REPLY_BYTES ERROR_AT STRIDE FRAME_FILE...\n");
        return 2;
    }
    int connection_count = atoi(words[3]);
    double seconds = atof(words[5]);
    in_flight = atoi(words[4]);
    reply_bytes = atoi(words[6]);
    error_at = atoi(words[7]);
    stride = atoi(words[8]);
    frame_count = count - 9;
    if (connection_count < 1 || in_flight < 1 || reply_bytes < 8 || stride < 0 || error_at < 0 || error_at + 2 > reply_bytes) die("wrong arguments");
    frames = calloc(frame_count, sizeof *frames);
    struct connection *connections = calloc(connection_count, sizeof *connections);
    struct epoll_event events[EVENTS];
    epoll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < frame_count; i++) {
        frames[i] = read_frame(words[9 + i]);
        if (frames[i].size > frame_bytes_max) frame_bytes_max = frames[i].size;
    }
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        c->frame_number = i % frame_count;
        c->frame = &frames[c->frame_number];
        c->out = malloc((size_t)in_flight * frame_bytes_max);
        c->in = malloc((size_t)in_flight * reply_bytes + 1);
        c->sent_ns = calloc(in_flight, sizeof *c->sent_ns);
        connect_to(c, words[1], atoi(words[2]));
    }
    int64_t started = now_ns(), stop_at = started + (int64_t)(seconds * 1e9), now = started, last_heard = started;
    for (int i = 0; i < connection_count; i++) send_more(&connections[i]);
    while (now < stop_at || replies < requests) {
        int ready = epoll_wait(epoll_descriptor, events, EVENTS, 100);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
            if (now < stop_at) send_more(c);
        }
        now = now_ns();
        if (ready > 0) last_heard = now;
        if (now - last_heard > SILENCE_SECONDS * INT64_C(1000000000)) {
            errno = 0;
            die("the broker no longer answers");
        }
    }
    printf("{\"requests\": %llu, \"errors\": %llu, \"first_error\": %d, \"seconds\": %.6f, \"p50_us\": %d, \"p99_us\": %d, \"sends\": %llu, \"receives\": %llu}\n",
           (unsigned long long)replies, (unsigned long long)errors, first_error, (now - started) / 1e9, percentile(0.5), percentile(0.99),
           (unsigned long long)sends, (unsigned long long)receives);
    return errors ? 1 : 0;
}
