/* SPDX-License-Identifier: Apache-2.0 */
/* storm threads COUNT: publish and read in threads of one process.
 * storm publish FILE SLOT_OFFSET WORDS: publish for ever.
 * storm read: attach and take until a grant says "death". A grant's mask encodes its epoch. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#define LAST DROM_REASON_DEATH

static uint64_t pattern(uint64_t epoch, uint32_t word)
{
    return (epoch + 1) * UINT64_C(0x9E3779B97F4A7C15) + word;
}

static void publish_next(struct drom_slot *slot, uint32_t words, uint32_t reason)
{
    uint64_t mask[DROM_MAX_MASK_WORDS];
    uint64_t next = __atomic_load_n(&slot->epoch, __ATOMIC_RELAXED) + 1;
    for (uint32_t i = 0; i < words; i++)
        mask[i] = pattern(next, i);
    drom_publish(slot, mask, words, reason);
}

static int torn(const drom_grant *g)
{
    uint32_t ncpus = 0;
    for (uint32_t i = 0; i < g->mask_words; i++) {
        if (g->mask[i] != pattern(g->epoch, i))
            return 1;
        ncpus += (uint32_t)__builtin_popcountll(g->mask[i]);
    }
    return ncpus != g->ncpus;
}

struct stage {
    struct drom_slot *slot;
    uint32_t words;
};

static void *reader(void *argument)
{
    const struct stage *stage = argument;
    static _Thread_local drom_grant g;
    size_t bad = 0;
    for (uint64_t seen = 0;;) {
        if (dromi_read(stage->slot, seen, 0, 0, stage->words, &g) != READ_GRANT)
            continue;
        bad += (size_t)(g.epoch <= seen && seen) + (size_t)torn(&g);
        seen = g.epoch;
        if (g.reason == LAST)
            return (void *)bad;
    }
}

static int in_threads(int count)
{
    struct stage stage = {.words = 16};
    size_t size = DROM_SLOT_FIXED + DROM_MASKS_PER_SLOT * 8 * stage.words;
    stage.slot = aligned_alloc(64, size);
    memset(stage.slot, 0, size);
    pthread_t readers[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&readers[i], NULL, reader, &stage);
    for (int i = 0; i < count; i++)
        publish_next(stage.slot, stage.words, DROM_REASON_SHARE);
    publish_next(stage.slot, stage.words, LAST);
    size_t bad = 0;
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(readers[i], &result);
        bad += (size_t)result;
    }
    free(stage.slot);
    printf("torn=%zu\n", bad);
    return bad != 0;
}

static int publish_for_ever(const char *path, size_t offset, uint32_t words)
{
    struct stat about;
    int fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &about) != 0)
        return 1;
    char *at = mmap(NULL, (size_t)about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED || write(STDOUT_FILENO, "go\n", 3) != 3)
        return 1;
    for (;;)
        publish_next((void *)(at + offset), words, DROM_REASON_SHARE);
}

static int take_until_last(void)
{
    static drom_grant g;
    size_t taken = 0, bad = 0;
    drom *d = drom_attach();
    if (drom_mode(d) != DROM_RESPONDER || write(STDOUT_FILENO, "go\n", 3) != 3)
        return 1;
    do {
        drom_wait(d, -1);
        if (drom_take(d, &g) != 1)
            continue;
        taken++;
        bad += (size_t)torn(&g);
        drom_acknowledge(d, &g);
    } while (g.reason != LAST);
    drom_detach(d);
    printf("taken=%d torn=%zu\n", taken > 0, bad);
    return bad != 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "threads") == 0)
        return in_threads(atoi(argv[2]));
    if (argc == 5 && strcmp(argv[1], "publish") == 0)
        return publish_for_ever(argv[2], strtoul(argv[3], NULL, 10), (uint32_t)atoi(argv[4]));
    return take_until_last();
}
