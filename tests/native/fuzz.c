/* SPDX-License-Identifier: Apache-2.0 */
/* All input that the native part reads from other processes, for libFuzzer. The first byte selects it: a program file that drom-run
 * reads, the reply to its registration, or the registry and mailbox that a program attaches to. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "task.h"
#include "internal.h"

enum kind { PROGRAM, ANSWER, ATTACH, KINDS };

static int listener = -1;
static const uint8_t *next_answer;
static size_t next_size;

static void must(bool holds, const char *what)
{
    if (!holds) {
        perror(what);
        abort();
    }
}

static int file_of(const uint8_t *data, size_t size)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    must(fd >= 0 && write(fd, data, size) == (ssize_t)size, "memfd");
    return fd;
}

static void read_a_program(const uint8_t *data, size_t size)
{
    char path[64];
    struct program program;
    int fd = file_of(data, size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_program(&program, path);
    must(memchr(program.loader, '\0', sizeof program.loader), "loader");
    close(fd);
}

static void receive_an_answer(const uint8_t *data, size_t size)
{
    int ends[2];
    struct answer answer;
    char cpus[256];
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "socketpair");
    must(send(ends[0], data, size, 0) == (ssize_t)size, "send");
    close(ends[0]);
    if (dromi_receive(ends[1], &answer, 0) == 0) {
        must(memchr(answer.reply.text, '\0', sizeof answer.reply.text), "text");
        dromi_cpu_list(answer.mask, (answer.reply.mask_bits + 63) / 64, cpus, sizeof cpus);
        must(memchr(cpus, '\0', sizeof cpus), "list");
    }
    dromi_close_answer(&answer);
    close(ends[1]);
}

/* The agent's side of one attach: the answer, then a registry and a mailbox of any content and size. */
static void answer_attach(int peer)
{
    struct drom_request_message request;
    struct drom_reply_message reply;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {.bytes = {0}};
    must(recv(peer, &request, sizeof request, 0) == sizeof request, "recv");
    memcpy(&reply, next_answer, sizeof reply);
    size_t rest = next_size - sizeof reply, mailbox = rest < DROM_MAILBOX_SIZE ? rest : DROM_MAILBOX_SIZE;
    int fds[] = {file_of(next_answer + sizeof reply + mailbox, rest - mailbox), file_of(next_answer + sizeof reply, mailbox)};
    struct iovec part = {&reply, sizeof reply};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(rights), fds, sizeof fds);
    must(sendmsg(peer, &message, 0) == sizeof reply, "sendmsg");
    close(fds[0]);
    close(fds[1]);
}

static void *serve(void *unused)
{
    for (;;) {
        int peer = accept(listener, NULL, NULL);
        must(peer >= 0, "accept");
        answer_attach(peer);
        close(peer);
    }
    return unused;
}

static void attach(const uint8_t *data, size_t size)
{
    if (size < sizeof(struct drom_reply_message))
        return;
    next_answer = data;
    next_size = size;
    drom *d = drom_attach();
    drom_grant g;
    if (drom_poll(d) && drom_take(d, &g) > 0)
        must(g.mask_words <= DROM_MAX_MASK_WORDS, "mask");
    drom_want(d, 1, 2);
    drom_detach(d);
}

static void open_registration_socket(void)
{
    static char folder[] = "/tmp/drom-fuzz-XXXXXX";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    pthread_t thread;
    must(mkdtemp(folder) != NULL, "mkdtemp");
    setenv("DROM_RUNTIME_DIR", folder, 1);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/door", folder);
    listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0, "listen");
    must(pthread_create(&thread, NULL, serve, NULL) == 0, "thread");
}

static void close_registration_socket(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s/door", getenv("DROM_RUNTIME_DIR"));
    unlink(path);
    rmdir(getenv("DROM_RUNTIME_DIR"));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    open_registration_socket();
    atexit(close_registration_socket);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const readers[KINDS])(const uint8_t *, size_t) = {read_a_program, receive_an_answer, attach};
    if (size)
        readers[data[0] % KINDS](data + 1, size - 1);
    return 0;
}
