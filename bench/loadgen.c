/* A load generator for RocketMQ brokers: one thread, epoll, frames made before the clock starts.
 *
 *   loadgen --port N [--host 127.0.0.1] --mode send|batch|pull|constant --header json|binary --connections N
 *           --outstanding N [--each] [--seconds S] [--warmup S] [--topic T] [--queues N] [--body N] [--id 32|56]
 *           [--batch N] [--pull N] [--group G] [--code N] [--access-key K] [--sql EXPRESSION]
 *           [--property NAME=VALUE]
 *
 * Each connection keeps `outstanding` requests without a reply. Replies that one read brought are counted, their slots
 * written again in one write (--each: a write for each request, as a Java client does). Between two sends of a slot
 * only digits change: unique ids, and of a pull the offset. Prints one JSON object: requests, messages, errors (reply
 * codes other than 0, with the first remark seen), seconds, latency percentiles in us, its own CPU seconds.
 *
 * --access-key signs each request anew, as its digits change, with the secret key of LOADGEN_SECRET_KEY. --sql: pulls
 * filter by it, and what is sent has a property n, 0 to 99, each as often as any other.
 *
 * Not the bottleneck: about 0.3 us a request beside the kernel's own time, some 3 us more for a signature.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MODE_SEND, MODE_BATCH, MODE_PULL };
enum { OPAQUE_BASE = 1000000, BUCKETS = 64 * 16, IN_SIZE = 4 << 20 };

typedef struct {            /* one request in flight */
    char *frame;
    size_t size;
    size_t *id_at;          /* where the 8 last hex digits of each unique id stand */
    int id_count;
    size_t offset_at;       /* pull: where the 12 digits of queueOffset stand */
    char *signed_text;      /* what the signature is of: all values by their names' order, then the body */
    size_t signed_size;
    size_t *signed_id_at;   /* id_at within it */
    size_t signature_at;    /* where the 28 characters of the signature stand */
    uint64_t sent_ns;
    int busy;
} Slot;

typedef struct {
    int fd;
    Slot *slots;
    char *in;
    size_t in_size;
    char *out;
    size_t out_start, out_end, out_room;
    int writable_wanted;
} Connection;

static const char *host = "127.0.0.1", *topic = "BenchTopic", *group = "bench_group";
static int port, mode = MODE_SEND, binary, connections = 1, outstanding = 1, each_alone, queues = 16, body_size = 500;
static int id_size = 32, batch_count = 32, pull_count = 32, code_override;
static const char *access_key, *secret_key, *sql, *property;
static double seconds = 5, warmup = 1;

static uint64_t requests, messages, errors, bytes_in;
static uint64_t buckets[BUCKETS];
static uint32_t id_counter;
static int counting, first_error_code;
static char first_error[160];
static int poller;

static void die(const char *what) {
    fprintf(stderr, "loadgen: %s: %s\n", what, errno ? strerror(errno) : "wrong");
    exit(2);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void put32(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static uint32_t get32(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

/* Latency in 16 steps a doubling: within 6 % of the truth. */
static int bucket_of(uint64_t ns) {
    if (ns < 16) return (int)ns;
    int high = 63 - __builtin_clzll(ns);
    return (high - 3) * 16 + (int)((ns >> (high - 4)) & 15);
}

static double bucket_us(int bucket) {
    if (bucket < 16) return bucket / 1e3;
    int high = bucket / 16 + 3;
    return (double)((16 + (uint64_t)(bucket % 16)) << (high - 4)) / 1e3;
}

static double percentile(double part) {
    uint64_t total = 0, seen = 0;
    for (int i = 0; i < BUCKETS; i++) total += buckets[i];
    for (int i = 0; i < BUCKETS; i++) {
        seen += buckets[i];
        if (total && (double)seen >= part * (double)total) return bucket_us(i);
    }
    return 0;
}

/* A buffer that grows while a frame is made. */
typedef struct { char *data; size_t size; } Text;

static void add(Text *text, const void *data, size_t size) {
    text->data = realloc(text->data, text->size + size + 1);
    if (!text->data) die("memory");
    memcpy(text->data + text->size, data, size);
    text->size += size;
    text->data[text->size] = 0;
}

static void adds(Text *text, const char *s) { add(text, s, strlen(s)); }

/* SHA-1, as RFC 3174 has it; the state goes in and out, so that the key's two blocks are hashed once. */
static uint32_t rotate(uint32_t value, int by) { return value << by | value >> (32 - by); }

static void sha1_block(uint32_t *state, const unsigned char *block) {
    uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int i = 0; i < 16; i++) w[i] = get32((const char *)block + 4 * i);
    for (int i = 16; i < 80; i++) w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20 ? (b & c) | (~b & d) : i < 40 ? b ^ c ^ d : i < 60 ? (b & c) | (b & d) | (c & d) : b ^ c ^ d;
        uint32_t k = i < 20 ? 0x5A827999 : i < 40 ? 0x6ED9EBA1 : i < 60 ? 0x8F1BBCDC : 0xCA62C1D6;
        uint32_t next = rotate(a, 5) + f + e + k + w[i];
        e = d, d = c, c = rotate(b, 30), b = a, a = next;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
}

/* Hash what follows one block that is in the state already. */
static void sha1_rest(uint32_t *state, const char *data, size_t size) {
    unsigned char tail[128] = {0};
    size_t whole = size & ~(size_t)63, left = size - whole, end = left < 56 ? 64 : 128;
    for (size_t i = 0; i < whole; i += 64) sha1_block(state, (const unsigned char *)data + i);
    memcpy(tail, data + whole, left);
    tail[left] = 0x80;
    put32((char *)tail + end - 4, (uint32_t)((size + 64) * 8));
    for (size_t i = 0; i < end; i += 64) sha1_block(state, tail + i);
}

static uint32_t inner_key[5], outer_key[5];

static void learn_key(void) {
    static const uint32_t begin[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
    unsigned char inner[64], outer[64];
    size_t size = strlen(secret_key);
    if (size > 64) die("the secret key has more than 64 characters");
    for (size_t i = 0; i < 64; i++) {
        unsigned char byte = i < size ? (unsigned char)secret_key[i] : 0;
        inner[i] = byte ^ 0x36, outer[i] = byte ^ 0x5C;
    }
    memcpy(inner_key, begin, sizeof begin);
    memcpy(outer_key, begin, sizeof begin);
    sha1_block(inner_key, inner);
    sha1_block(outer_key, outer);
}

static void sign(Slot *slot) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t inner[5], outer[5];
    unsigned char digest[21] = {0};
    memcpy(inner, inner_key, sizeof inner);
    memcpy(outer, outer_key, sizeof outer);
    sha1_rest(inner, slot->signed_text, slot->signed_size);
    for (int i = 0; i < 5; i++) put32((char *)digest + 4 * i, inner[i]);
    sha1_rest(outer, (char *)digest, 20);
    for (int i = 0; i < 5; i++) put32((char *)digest + 4 * i, outer[i]);
    char *at = slot->frame + slot->signature_at;
    for (int i = 0; i < 21; i += 3, at += 4) {
        uint32_t three = (uint32_t)digest[i] << 16 | (uint32_t)digest[i + 1] << 8 | digest[i + 2];
        for (int k = 0; k < 4; k++) at[k] = letters[three >> (18 - 6 * k) & 63];
    }
    at[-1] = '=';
}

static void make_id(char *id) {
    static const char v4[] = "7F0000014A3218B4AAC22F1C00000000";
    static const char v6[] = "FD0000000000000000000000000000024A3218B4AAC22F1C00000000";
    memcpy(id, id_size == 56 ? v6 : v4, (size_t)id_size + 1);
}

static struct { const char *name; char *value; size_t size; } fields[32];
static int field_count;

static void field(Text *header, const char *name, const char *value, size_t size) {
    char lengths[4];
    fields[field_count].name = name;
    fields[field_count].value = malloc(size + 1);
    memcpy(fields[field_count].value, value, size);
    fields[field_count++].size = size;
    uint16_t name_size = htons((uint16_t)strlen(name));
    if (binary) {
        add(header, &name_size, 2);
        adds(header, name);
        put32(lengths, (uint32_t)size);
        add(header, lengths, 4);
        add(header, value, size);
        return;
    }
    if (header->data[header->size - 1] != '{') adds(header, ",");
    adds(header, "\"");
    adds(header, name);
    adds(header, "\":\"");
    for (size_t i = 0; i < size; i++) {
        if (value[i] == 1) adds(header, "\\u0001");
        else if (value[i] == 2) adds(header, "\\u0002");
        else add(header, value + i, 1);
    }
    adds(header, "\"");
}

static void field_text(Text *header, const char *name, const char *value) { field(header, name, value, strlen(value)); }

static void field_number(Text *header, const char *name, long long value) {
    char digits[24];
    snprintf(digits, sizeof digits, "%lld", value);
    field_text(header, name, digits);
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Where all copies of the slot's id stand in a text; each is given by its last 8 digits. */
static int find_ids(const char *text, size_t size, const char *id, size_t *found) {
    int count = 0;
    const char *at = text;
    while ((at = memmem(at, (size_t)(text + size - at), id, (size_t)id_size))) {
        found[count++] = (size_t)(at - text) + (size_t)id_size - 8;
        at += id_size;
    }
    return count;
}

static void make_slot(Slot *slot, int connection, int number) {
    int code = code_override ? code_override : mode == MODE_SEND ? 310 : mode == MODE_BATCH ? 320 : 11;
    int opaque = OPAQUE_BASE + number, queue = (connection * outstanding + number) % queues;
    char properties[320], id[64], born[24];
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    snprintf(born, sizeof born, "%lld", (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000);
    make_id(id);
    field_count = 0;
    Text header = {0}, body = {0}, frame = {0};
    slot->id_at = calloc((size_t)(mode == MODE_BATCH ? batch_count + 1 : 1), sizeof(size_t));

    if (binary) {
        char head[21] = {0};
        uint16_t small = htons((uint16_t)code);
        memcpy(head, &small, 2);
        small = htons(479);
        memcpy(head + 3, &small, 2);
        put32(head + 5, (uint32_t)opaque);
        add(&header, head, 21);
    } else {
        char start[40];
        snprintf(start, sizeof start, "{\"code\":%d,\"extFields\":{", code);
        adds(&header, start);
    }
    if (mode == MODE_PULL) {
        field_text(&header, "consumerGroup", group);
        field_text(&header, "topic", topic);
        field_number(&header, "queueId", queue);
        field_text(&header, "queueOffset", "000000000000");
        field_number(&header, "maxMsgNums", pull_count);
        field_number(&header, "sysFlag", 4);
        field_number(&header, "commitOffset", 0);
        field_number(&header, "suspendTimeoutMillis", 15000);
        field_text(&header, "subscription", sql ? sql : "*");
        field_number(&header, "subVersion", 0);
        field_text(&header, "expressionType", sql ? "SQL92" : "TAG");
        field_number(&header, "maxMsgBytes", 262144);
    } else {
        snprintf(properties, sizeof properties, "UNIQ_KEY\001%s\002WAIT\001true\002TAGS\001TagA\002", id);
        if (sql) snprintf(properties + strlen(properties), sizeof properties - strlen(properties), "n\001%d\002",
                          (connection * outstanding + number) % 100);
        if (property) {
            size_t used = strlen(properties);
            snprintf(properties + used, sizeof properties - used, "%s\002", property);
            *strchr(properties + used, '=') = 1;
        }
        if (mode == MODE_BATCH) snprintf(properties, sizeof properties, "UNIQ_KEY\001%s\002WAIT\001true\002", id);
        field_text(&header, "a", "bench_producer");
        field_text(&header, "b", topic);
        field_text(&header, "c", "TBW102");
        field_text(&header, "d", "4");
        field_number(&header, "e", queue);
        field_text(&header, "f", "0");
        field_text(&header, "g", born);
        field_text(&header, "h", "0");
        field_text(&header, "i", properties);
        field_text(&header, "j", "0");
        field_text(&header, "k", "false");
        field_text(&header, "m", mode == MODE_BATCH ? "true" : "false");
        field_text(&header, "n", "broker-a");
    }
    if (secret_key) {
        field_text(&header, "AccessKey", access_key);
        int signed_count = field_count;
        field_text(&header, "Signature", "XXXXXXXXXXXXXXXXXXXXXXXXXXXX");
        field_count = signed_count;
    }
    if (binary) {
        put32(header.data + 17, (uint32_t)(header.size - 21));
    } else {
        char end[120];
        snprintf(end, sizeof end,
                 "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
                 opaque);
        adds(&header, end);
    }

    char *payload = malloc((size_t)body_size + 1);
    for (int i = 0; i < body_size; i++) payload[i] = (char)('a' + (i * 7 + number) % 26);
    if (mode == MODE_SEND) add(&body, payload, (size_t)body_size);
    for (int i = 0; mode == MODE_BATCH && i < batch_count; i++) {
        char item[20] = {0};
        size_t properties_size = (size_t)snprintf(properties, sizeof properties, "UNIQ_KEY\001%s\002WAIT\001true\002", id);
        uint16_t small = htons((uint16_t)properties_size);
        put32(item, (uint32_t)(20 + body_size + 2 + (int)properties_size));
        put32(item + 16, (uint32_t)body_size);
        add(&body, item, 20);
        add(&body, payload, (size_t)body_size);
        add(&body, &small, 2);
        add(&body, properties, properties_size);
    }
    free(payload);

    char head[8];
    put32(head, (uint32_t)(4 + header.size + body.size));
    put32(head + 4, (uint32_t)header.size | (binary ? 1u << 24 : 0));
    add(&frame, head, 8);
    add(&frame, header.data, header.size);
    if (body.size) add(&frame, body.data, body.size);
    slot->frame = frame.data;
    slot->size = frame.size;
    if (mode == MODE_PULL) {
        char *at = memmem(frame.data, frame.size, "000000000000", 12);
        slot->offset_at = (size_t)(at - frame.data);
    } else {
        slot->id_count = find_ids(frame.data, frame.size, id, slot->id_at);
    }
    if (secret_key) {
        Text text = {0};
        qsort(fields, (size_t)field_count, sizeof fields[0], by_name);
        for (int i = 0; i < field_count; i++) add(&text, fields[i].value, fields[i].size);
        if (body.size) add(&text, body.data, body.size);
        slot->signed_text = text.data;
        slot->signed_size = text.size;
        slot->signed_id_at = calloc((size_t)(mode == MODE_BATCH ? batch_count + 1 : 1), sizeof(size_t));
        if (find_ids(text.data, text.size, id, slot->signed_id_at) != slot->id_count) die("an id that is not signed");
        slot->signature_at = (size_t)((char *)memmem(frame.data, frame.size, "XXXXXXXXXXXXXXXXXXXXXXXXXXXX", 28) - frame.data);
    }
    for (int i = 0; i < field_count; i++) free(fields[i].value);
    free(header.data);
    free(body.data);
}

static void renew(Slot *slot) {
    static const char digits[] = "0123456789ABCDEF";
    for (int i = 0; i < slot->id_count; i++) {
        uint32_t value = ++id_counter;
        char *at = slot->frame + slot->id_at[i];
        for (int k = 7; k >= 0; k--, value >>= 4) at[k] = digits[value & 15];
        if (secret_key) memcpy(slot->signed_text + slot->signed_id_at[i], at, 8);
    }
    if (secret_key) sign(slot);
}

static void wait_for(Connection *connection, int writable) {
    if (connection->writable_wanted == writable) return;
    connection->writable_wanted = writable;
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = connection};
    epoll_ctl(poller, EPOLL_CTL_MOD, connection->fd, &event);
}

static void drain(Connection *connection) {
    while (connection->out_start < connection->out_end) {
        ssize_t sent = send(connection->fd, connection->out + connection->out_start,
                            connection->out_end - connection->out_start, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EAGAIN) {
                wait_for(connection, 1);
                return;
            }
            die("send");
        }
        connection->out_start += (size_t)sent;
    }
    connection->out_start = connection->out_end = 0;
    wait_for(connection, 0);
}

static void enqueue(Connection *connection, Slot *slot, uint64_t now) {
    renew(slot);
    slot->sent_ns = now;
    slot->busy = 1;
    if (connection->out_end + slot->size > connection->out_room) {
        connection->out_room = (connection->out_end + slot->size) * 2;
        connection->out = realloc(connection->out, connection->out_room);
        if (!connection->out) die("memory");
    }
    memcpy(connection->out + connection->out_end, slot->frame, slot->size);
    connection->out_end += slot->size;
    if (each_alone) drain(connection);
}

static long number_after(const char *header, size_t size, const char *name, long missing) {
    char *at = memmem(header, size, name, strlen(name));
    if (!at) return missing;
    at += strlen(name);
    if (*at == '"') at++;
    return strtol(at, NULL, 10);
}

static long binary_value(const char *header, size_t size, const char *name, long missing) {
    char *at = memmem(header, size, name, strlen(name));
    return at ? strtol(at + strlen(name) + 4, NULL, 10) : missing;
}

static void reply(Connection *connection, const char *frame, size_t size, uint64_t now) {
    uint32_t mark = get32(frame + 4);
    size_t header_size = mark & 0xFFFFFF;
    const char *header = frame + 8;
    long code, opaque;
    if (mark >> 24) {
        code = (int16_t)((uint8_t)header[0] << 8 | (uint8_t)header[1]);
        opaque = (long)get32(header + 5);
    } else {
        code = number_after(header, header_size, "\"code\":", -1);
        opaque = number_after(header, header_size, "\"opaque\":", -1);
    }
    long number = opaque - OPAQUE_BASE;
    if (number < 0 || number >= outstanding || !connection->slots[number].busy) {
        errno = 0;
        die("a reply to no open request");
    }
    Slot *slot = &connection->slots[number];
    slot->busy = 0;
    long count = 0;
    if (mode == MODE_PULL) {
        long next = mark >> 24 ? binary_value(header, header_size, "nextBeginOffset", 0)
                               : number_after(header, header_size, "\"nextBeginOffset\":", 0);
        if (code == 0)
            for (const char *at = header + header_size; at < frame + size; at += get32(at)) count++;
        if (code == 19 || code == 20 || code == 21) { /* the queue's end: from its start again */
            code = 0;
            next = 0;
        }
        char digits[16];
        snprintf(digits, sizeof digits, "%012ld", next);
        memcpy(slot->frame + slot->offset_at, digits, 12);
    } else {
        count = mode == MODE_BATCH ? batch_count : 1;
    }
    if (code != 0) {
        if (!first_error_code) {
            first_error_code = (int)code;
            char *at = memmem(header, header_size, "\"remark\":\"", 10);
            size_t room = at ? (size_t)(header + header_size - (at + 10)) : 0;
            if (room > sizeof first_error - 1) room = sizeof first_error - 1;
            for (size_t i = 0; i < room && at[10 + i] != '"' && at[10 + i] != '\\'; i++) first_error[i] = at[10 + i];
        }
        if (counting) errors++;
    } else if (counting) {
        messages += (uint64_t)count;
    }
    if (counting) {
        requests++;
        bytes_in += size;
        buckets[bucket_of(now - slot->sent_ns)]++;
    }
    enqueue(connection, slot, now);
}

static void receive(Connection *connection) {
    ssize_t got = recv(connection->fd, connection->in + connection->in_size, IN_SIZE - connection->in_size, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die(got ? "recv" : "the broker closed a connection");
    connection->in_size += (size_t)got;
    uint64_t now = now_ns();
    size_t position = 0;
    while (connection->in_size - position >= 8) {
        size_t size = 4 + (size_t)get32(connection->in + position);
        if (size > IN_SIZE) {
            errno = 0;
            die("a reply of more than 4 MiB");
        }
        if (connection->in_size - position < size) break;
        reply(connection, connection->in + position, size, now);
        position += size;
    }
    if (position) memmove(connection->in, connection->in + position, connection->in_size -= position);
    drain(connection);
}

static void open_connection(Connection *connection, int number) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("host is not an IPv4 address");
    connection->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(connection->fd, F_SETFL, O_NONBLOCK);
    connection->in = malloc(IN_SIZE);
    connection->slots = calloc((size_t)outstanding, sizeof(Slot));
    for (int i = 0; i < outstanding; i++) make_slot(&connection->slots[i], number, i);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, connection->fd, &event)) die("epoll");
}

static void arguments(int count, char **values) {
    for (int i = 1; i < count; i++) {
        char *name = values[i];
        if (!strcmp(name, "--each")) {
            each_alone = 1;
            continue;
        }
        char *value = i + 1 < count ? values[++i] : "";
        if (!strcmp(name, "--host")) host = value;
        else if (!strcmp(name, "--port")) port = atoi(value);
        else if (!strcmp(name, "--mode")) mode = !strcmp(value, "batch") ? MODE_BATCH : !strcmp(value, "pull") ? MODE_PULL : MODE_SEND;
        else if (!strcmp(name, "--header")) binary = !strcmp(value, "binary");
        else if (!strcmp(name, "--connections")) connections = atoi(value);
        else if (!strcmp(name, "--outstanding")) outstanding = atoi(value);
        else if (!strcmp(name, "--seconds")) seconds = atof(value);
        else if (!strcmp(name, "--warmup")) warmup = atof(value);
        else if (!strcmp(name, "--topic")) topic = value;
        else if (!strcmp(name, "--group")) group = value;
        else if (!strcmp(name, "--queues")) queues = atoi(value);
        else if (!strcmp(name, "--body")) body_size = atoi(value);
        else if (!strcmp(name, "--id")) id_size = atoi(value) == 56 ? 56 : 32;
        else if (!strcmp(name, "--batch")) batch_count = atoi(value);
        else if (!strcmp(name, "--pull")) pull_count = atoi(value);
        else if (!strcmp(name, "--access-key")) access_key = value;
        else if (!strcmp(name, "--sql")) sql = value;
        else if (!strcmp(name, "--property")) property = strchr(value, '=') ? value : NULL;
        else if (!strcmp(name, "--code")) code_override = atoi(value);
        else {
            fprintf(stderr, "loadgen: unknown option %s; the head of loadgen.c lists them\n", name);
            exit(2);
        }
    }
    if (!port || connections < 1 || outstanding < 1 || queues < 1 || body_size < 1) {
        fprintf(stderr, "loadgen: --port is needed; counts are at least 1\n");
        exit(2);
    }
    secret_key = access_key ? getenv("LOADGEN_SECRET_KEY") : NULL;
    if (access_key && (!secret_key || mode == MODE_PULL)) {
        fprintf(stderr, "loadgen: --access-key needs LOADGEN_SECRET_KEY in the environment, and sends or batches\n");
        exit(2);
    }
    if (secret_key) learn_key();
}

int main(int count, char **values) {
    arguments(count, values);
    id_counter = (uint32_t)now_ns();
    poller = epoll_create1(0);
    Connection *all = calloc((size_t)connections, sizeof(Connection));
    for (int i = 0; i < connections; i++) open_connection(&all[i], i);

    uint64_t start = now_ns();
    for (int i = 0; i < connections; i++) {
        for (int k = 0; k < outstanding; k++) enqueue(&all[i], &all[i].slots[k], start);
        drain(&all[i]);
    }
    uint64_t begin = start + (uint64_t)(warmup * 1e9), end = begin + (uint64_t)(seconds * 1e9);
    struct rusage before = {0}, after;
    struct epoll_event events[256];
    uint64_t now = start, heard = start;
    while (now < end) {
        int ready = epoll_wait(poller, events, 256, 100);
        for (int i = 0; i < ready; i++) {
            if (events[i].events & EPOLLOUT) drain(events[i].data.ptr);
            if (events[i].events & ~(uint32_t)EPOLLOUT) receive(events[i].data.ptr);
        }
        now = now_ns();
        if (ready > 0) heard = now;
        if (now - heard > 10000000000u) {
            errno = 0;
            die("no reply for 10 s");
        }
        if (!counting && now >= begin) {
            counting = 1;
            begin = now;
            end = begin + (uint64_t)(seconds * 1e9);
            getrusage(RUSAGE_SELF, &before);
        }
    }
    getrusage(RUSAGE_SELF, &after);
    double cpu = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
                 (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1e6;
    printf("{\"requests\": %llu, \"messages\": %llu, \"errors\": %llu, \"error_code\": %d, \"error\": \"%s\", "
           "\"seconds\": %.3f, \"received_size\": %llu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, "
           "\"loadgen_cpu_s\": %.3f}\n",
           (unsigned long long)requests, (unsigned long long)messages, (unsigned long long)errors, first_error_code,
           first_error, (double)(now - begin) / 1e9, (unsigned long long)bytes_in, percentile(0.5), percentile(0.99),
           percentile(0.999), cpu);
    return 0;
}
