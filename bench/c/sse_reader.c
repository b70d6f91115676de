// Many readers of one event stream in one process, so that the reader is not what is measured.
//
//   sse_reader <port> <request-file> <connections> <events-each> <patience-ms> <token>
//
// Opens the connections, says "ready", then counts events by a token that each has once, with digits behind it, and
// prints one line of JSON: how many, over which time, and how late they came if the digits are monotonic nanoseconds.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "buckets.h"

#define CARRY 64
#define BUFFER (1 << 18)

struct reader {
    int fd;
    int carried;
    char carry[CARRY];
};

static const char *token;
static size_t token_size;
static uint64_t late[BUCKETS];
static uint64_t events, first_ns, last_ns;

static void fail(const char *what) {
    fprintf(stderr, "sse_reader: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double percentile(double share) {
    uint64_t wanted = (uint64_t)(share * (double)events), seen = 0;
    for (int b = 0; b < BUCKETS; b++) {
        seen += late[b];
        if (seen > wanted) return bucket_ns(b);
    }
    return 0;
}

static void count(struct reader *r, char *buffer, int size, uint64_t at) {
    char *p = buffer, *end = buffer + size;
    for (;;) {
        char *found = memmem(p, (size_t)(end - p), token, token_size);
        if (found == NULL) {
            if (end - p > (long)token_size - 1) p = end - (token_size - 1);
            break;
        }
        char *digits = found + token_size;
        while (digits < end && *digits == ' ') digits++;
        uint64_t sent = 0;
        while (digits < end && *digits >= '0' && *digits <= '9') sent = sent * 10 + (uint64_t)(*digits++ - '0');
        if (digits == end) {
            p = found;
            break;
        }
        if (events++ == 0) first_ns = at;
        last_ns = at;
        late[bucket_of(at > sent ? at - sent : 0)]++;
        p = digits;
    }
    r->carried = (int)(end - p);
    if (r->carried > CARRY) r->carried = 0;
    memcpy(r->carry, p, (size_t)r->carried);
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: sse_reader <port> <request-file> <connections> <events-each> <patience-ms> <token>\n");
        return 2;
    }
    token = argv[6];
    token_size = strlen(token);
    static char buffer[BUFFER + CARRY], request[65536];
    int connections = atoi(argv[3]), patience = atoi(argv[5]);
    uint64_t wanted = (uint64_t)connections * strtoull(argv[4], NULL, 10);
    FILE *file = fopen(argv[2], "rb");
    if (file == NULL) fail(argv[2]);
    size_t request_size = fread(request, 1, sizeof request, file);
    fclose(file);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct reader *readers = calloc((size_t)connections, sizeof *readers);
    int poll = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        struct reader *r = &readers[i];
        r->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (r->fd < 0) fail("socket");
        if (connect(r->fd, (struct sockaddr *)&address, sizeof address) < 0) fail("connect");
        if (write(r->fd, request, request_size) != (ssize_t)request_size) fail("write");
        // The head of the answer, byte by byte: the body behind it is counted below.
        char head[8192];
        int size = 0;
        while (size < (int)sizeof head - 1) {
            if (read(r->fd, head + size, 1) != 1) fail("the answer ended");
            size++;
            if (size >= 4 && memcmp(head + size - 4, "\r\n\r\n", 4) == 0) break;
        }
        head[size] = 0;
        if (strncmp(head, "HTTP/1.1 200", 12) != 0) {
            fprintf(stderr, "sse_reader: %s\n", head);
            return 1;
        }
        fcntl(r->fd, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = r};
        epoll_ctl(poll, EPOLL_CTL_ADD, r->fd, &event);
    }
    printf("ready\n");
    fflush(stdout);
    uint64_t bytes = 0;
    struct epoll_event ready[256];
    while (events < wanted) {
        int found = epoll_wait(poll, ready, 256, patience);
        if (found == 0) break;
        uint64_t at = now();
        for (int i = 0; i < found; i++) {
            struct reader *r = ready[i].data.ptr;
            memcpy(buffer, r->carry, (size_t)r->carried);
            ssize_t size = read(r->fd, buffer + r->carried, BUFFER);
            if (size <= 0) {
                if (size < 0 && errno == EAGAIN) continue;
                epoll_ctl(poll, EPOLL_CTL_DEL, r->fd, NULL);
                continue;
            }
            bytes += (uint64_t)size;
            count(r, buffer, r->carried + (int)size, at);
        }
    }
    printf("{\"events\": %lu, \"wanted\": %lu, \"bytes\": %lu, \"first_ns\": %lu, \"last_ns\": %lu, \"p50_ms\": %.4f, "
           "\"p99_ms\": %.4f}\n",
           events, wanted, bytes, first_ns, last_ns, percentile(0.50) / 1e6, percentile(0.99) / 1e6);
    return 0;
}
