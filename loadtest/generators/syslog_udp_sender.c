/*
 * Sends RFC 5424 lines as UDP datagrams at an even pace: every tick what is due by then, and no more.
 *
 *   syslog_udp_sender HOST PORT LINES_PER_SECOND SECONDS LINE_BYTES HOSTS TICK_US
 *
 * Line n comes from host n modulo HOSTS, which has a socket (so a source port) of its own, and says n. Prints "ready", begins at the next line on
 * stdin, and prints one line of JSON: how many it sent, and by how much the latest tick was late.
 *
 * Owned by loadtest/benchmarks/syslog_udp.py, which compiles it. (loggen begins with a second's lines as fast as it can; such a burst tests the size
 * of a receive buffer.) Weak spot: where it does not get its core in time, it catches up in one burst; hence `late_us`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { LINE_BYTES_MAX = 60000, HOSTS_MAX = 256 };

static void die(const char *words) {
    fprintf(stderr, "syslog_udp_sender: %s%s%s\n", words, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void sleep_until(int64_t ns) {
    struct timespec at = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
}

static void write_time(char *text, size_t size) {
    struct timespec now;
    struct tm parts;
    char seconds[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(text, size, "%s.%06ldZ", seconds, now.tv_nsec / 1000);
}

int main(int count, char **words) {
    static char line[LINE_BYTES_MAX + 1];
    int sockets[HOSTS_MAX];
    char at[64], go[16];
    if (count != 8) {
        fprintf(stderr, "usage: syslog_udp_sender HOST PORT LINES_PER_SECOND SECONDS LINE_BYTES HOSTS TICK_US\n");
        return 2;
    }
    double rate = atof(words[3]), seconds = atof(words[4]);
    int line_bytes = atoi(words[5]), hosts = atoi(words[6]);
    int64_t tick_ns = atoll(words[7]) * 1000, total = (int64_t)(rate * seconds), sent = 0, late = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
    if (hosts < 1 || hosts > HOSTS_MAX || line_bytes < 120 || line_bytes > LINE_BYTES_MAX || tick_ns < 1000) die("wrong numbers");
    if (inet_pton(AF_INET, words[1], &address.sin_addr) != 1) die("HOST must be an IPv4 address");
    for (int i = 0; i < hosts; i++) {
        sockets[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (sockets[i] < 0 || connect(sockets[i], (struct sockaddr *)&address, sizeof address)) die("connect");
    }
    memset(line, 'x', line_bytes);
    printf("ready\n");
    fflush(stdout);
    if (!fgets(go, sizeof go, stdin)) return 1;
    int64_t started = now_ns();
    for (int64_t tick_at = started; sent < total; tick_at += tick_ns) {
        sleep_until(tick_at);
        int64_t now = now_ns(), due = (int64_t)((now - started) * rate / 1e9) + 1;
        if (now - tick_at > late) late = now - tick_at;
        if (now - tick_at > tick_ns) tick_at = now; /* what was missed is sent now, all at once */
        write_time(at, sizeof at);
        for (; sent < total && sent < due; sent++) {
            int host = (int)(sent % hosts);
            int head = sprintf(line, "<134>1 %s host-%03d millrace-load 4711 - - line %012lld ", at, host, (long long)sent);
            line[head] = 'x';
            if (send(sockets[host], line, line_bytes, 0) != line_bytes) die("send");
        }
    }
    printf("{\"lines\": %lld, \"seconds\": %.6f, \"late_us\": %lld}\n", (long long)sent, (now_ns() - started) / 1e9, (long long)late / 1000);
    return 0;
}
