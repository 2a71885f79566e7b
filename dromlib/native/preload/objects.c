/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the file of a call, and keeps a record of each file. The list has no lock: a thread that loads a library may hold the
 * loader's lock when a constructor calls these functions. Nothing is freed, as another thread may be reading it. */
#include <dlfcn.h>
#include <stdlib.h>

#include "openmp.h"

#define TRIES 8

#pragma weak dladdr1 /* missing in a musl program that a preloaded one has started */

struct site sites[SITES];
static struct object *objects;
static struct object no_object = {.runtime = &no_runtime, .elsewhere = {.object = &no_object}};

const void *base_of(const void *address, struct link_map **map)
{
    Dl_info about;
    return address && dladdr1 && dladdr1(address, &about, (void **)map, RTLD_DL_LINKMAP) ? about.dli_fbase : NULL;
}

static int read_thread_data(struct dl_phdr_info *info, size_t size, void *object)
{
    struct object *o = object;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (const char *)info->dlpi_addr + part->p_vaddr - part->p_offset == o->base)
            o->has_thread_data |= info->dlpi_tls_modid != 0;
    }
    return 0;
}

static struct object *known_object(struct object *first, const void *base)
{
    while (first && __atomic_load_n(&first->base, __ATOMIC_RELAXED) != base)
        first = first->next;
    return first;
}

static struct object *keep_object(struct object *mine)
{
    struct object *first = __atomic_load_n(&objects, __ATOMIC_ACQUIRE);
    do {
        struct object *known = known_object(first, mine->base);
        mine->next = first;
        if (known) {
            free(mine);
            return known;
        }
    } while (!__atomic_compare_exchange_n(&objects, &first, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return mine;
}

static bool has_blas(const void *base, const char *path)
{
    struct link_map *map;
    void *file = path[0] ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    bool has = file && base_of(dlsym(file, "dgemm_"), &map) == base;
    if (file)
        dlclose(file);
    return has;
}

/* Code that was generated at run time is in no file and counts as the program's. */
static struct object *find_object(const void *address)
{
    struct link_map *map = NULL;
    const void *base = base_of(address, &map);
    struct object *known = known_object(__atomic_load_n(&objects, __ATOMIC_ACQUIRE), base);
    if (known)
        return known;
    const struct runtime *runtime = runtime_for(base ? map : NULL);
    struct object *mine = runtime != &no_runtime ? calloc(1, sizeof *mine) : NULL;
    if (!mine)
        return &no_object;
    mine->queries = NO_QUERIES;
    mine->elsewhere.object = mine;
    mine->base = base;
    mine->runtime = runtime;
    mine->is_blas = base && has_blas(base, map->l_name);
    dl_iterate_phdr(read_thread_data, mine);
    return keep_object(mine);
}

static struct site *find_site(const void *address)
{
    for (size_t i = 0; i < TRIES; i++) {
        struct site *site = &sites[(first_place(address) + i) % SITES];
        if (is_site(site, address))
            return site;
    }
    return NULL;
}

/* Threads that add an address at the same time all get the same site. */
static struct site *add_site(const void *address, struct object *object)
{
    for (size_t i = 0; i < TRIES && object->base; i++) {
        struct site *site = &sites[(first_place(address) + i) % SITES];
        const void *there = NULL;
        if (__atomic_compare_exchange_n(&site->address, &there, address, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            __atomic_store_n(&site->object, object, __ATOMIC_RELEASE);
        else if (there == address)
            while (!__atomic_load_n(&site->object, __ATOMIC_ACQUIRE))
                ;
        else
            continue;
        return site;
    }
    return &object->elsewhere;
}

struct site *look_up(const void *address)
{
    struct site *site = find_site(address);
    return site ? site : add_site(address, find_object(address));
}

/* The key is no valid address. */
struct site *site_of(struct object *object, const struct place *region, const void *address)
{
    const void *both = (const void *)((uintptr_t)address ^ ~((uintptr_t)region << 8));
    struct site *site = find_site(both);
    return site ? site : add_site(both, object);
}

void forget_unloaded(void)
{
    struct link_map *map;
    bool any = false;
    for (struct object *each = __atomic_load_n(&objects, __ATOMIC_ACQUIRE); each; each = each->next)
        if (each->base && each->base != &no_object && base_of(each->base, &map) != each->base) {
            __atomic_store_n(&each->base, &no_object, __ATOMIC_RELAXED);
            any = true;
        }
    for (struct site *site = sites; site < sites + SITES && any; site++) {
        const struct object *object = __atomic_load_n(&site->object, __ATOMIC_ACQUIRE);
        if (object && __atomic_load_n(&object->base, __ATOMIC_RELAXED) == &no_object) {
            site->place = (struct place){0};
            __atomic_store_n(&site->object, NULL, __ATOMIC_RELAXED);
            __atomic_store_n(&site->address, NULL, __ATOMIC_RELEASE);
        }
    }
}
