// The same request over many connections, so that the client is not what is measured.
//
//   http_load <port> <request-file> <connections> <warm-up-ms> <measure-ms>
//
// Each connection sends the request, waits for its answer, sends it again. What is answered after the warm-up counts.
// Prints one line of JSON: how many answers of each status, over which time, and how long they took.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "buckets.h"

#define BUFFER 16384

struct sender {
    int fd;
    size_t sent, got;
    uint64_t begun_ns;
    char answer[BUFFER];
};

static uint64_t took[BUCKETS], statuses[1000], answers, broken;
static char *request;
static size_t request_size;

static void fail(const char *what) {
    fprintf(stderr, "http_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double percentile_ms(double share) {
    uint64_t wanted = (uint64_t)(share * (double)answers), seen = 0;
    for (int i = 0; i < BUCKETS; i++)
        if ((seen += took[i]) > wanted) return bucket_ns(i) / 1e6;
    return 0;
}

static void open_connection(struct sender *s, int port, int poll) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    if ((s->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0) fail("socket");
    if (connect(s->fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, s->fd, &event)) fail("epoll_ctl");
}

// Requests are small beside a socket's buffer: a blocking send does not keep the others waiting.
static int send_request(struct sender *s) {
    s->got = 0;
    s->begun_ns = now();
    for (s->sent = 0; s->sent < request_size;) {
        ssize_t n = send(s->fd, request + s->sent, request_size - s->sent, MSG_NOSIGNAL);
        if (n <= 0) return 0;
        s->sent += (size_t)n;
    }
    return 1;
}

// The size of a whole answer, or 0 while it is not there.
static size_t whole(const struct sender *s) {
    const char *end = memmem(s->answer, s->got, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t head = (size_t)(end - s->answer) + 4, length = 0;
    for (const char *line = s->answer; line < end;) {
        if (!strncasecmp(line, "content-length:", 15)) length = strtoul(line + 15, NULL, 10);
        const char *next = memmem(line, (size_t)(end + 2 - line), "\r\n", 2);
        if (!next) break;
        line = next + 2;
    }
    return s->got >= head + length ? head + length : 0;
}

int main(int count, char **given) {
    if (count != 6) return fprintf(stderr, "usage: http_load port request-file connections warm-up-ms measure-ms\n"), 2;
    int port = atoi(given[1]), connections = atoi(given[3]);
    FILE *file = fopen(given[2], "rb");
    if (!file) fail(given[2]);
    request = malloc(1 << 22);
    request_size = fread(request, 1, 1 << 22, file);
    fclose(file);
    int poll = epoll_create1(0);
    struct sender *senders = calloc((size_t)connections, sizeof *senders);
    for (int i = 0; i < connections; i++) open_connection(&senders[i], port, poll);
    uint64_t from = now() + strtoull(given[4], NULL, 10) * 1000000u, until = from + strtoull(given[5], NULL, 10) * 1000000u;
    for (int i = 0; i < connections; i++)
        if (!send_request(&senders[i])) fail("send");
    struct epoll_event ready[256];
    uint64_t last = from;
    while (now() < until) {
        int n = epoll_wait(poll, ready, 256, 100);
        for (int i = 0; i < n; i++) {
            struct sender *s = ready[i].data.ptr;
            ssize_t got = recv(s->fd, s->answer + s->got, BUFFER - s->got, 0);
            int is_open = got > 0;
            if (is_open) {
                s->got += (size_t)got;
                if (!whole(s) && s->got < BUFFER) continue;
                uint64_t at = now();
                if (at >= from) {
                    int status = s->got > 12 ? atoi(s->answer + 9) : 0;
                    statuses[status < 0 || status > 999 ? 0 : status]++;
                    took[bucket_of(at - s->begun_ns)]++;
                    answers++;
                    last = at;
                }
                is_open = send_request(s);
            }
            if (!is_open) {
                broken++;
                close(s->fd);
                open_connection(s, port, poll);
                if (!send_request(s)) fail("send");
            }
        }
    }
    printf("{\"answers\": %lu, \"seconds\": %.6f, \"broken\": %lu, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"statuses\": {", answers,
           (double)(last - from) / 1e9, broken, percentile_ms(0.5), percentile_ms(0.99));
    const char *comma = "";
    for (int i = 0; i < 1000; i++)
        if (statuses[i]) printf("%s\"%d\": %lu", comma, i, statuses[i]), comma = ", ";
    printf("}}\n");
    return 0;
}
