/* SPDX-License-Identifier: Apache-2.0 */
/* Which file a call comes from, and which OpenMP runtime serves that file. What has been found is kept in lists that only
 * grow, without a lock: a thread that loads a library may hold the loader's lock when its constructor calls us. */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "openmp.h"

#define TRIES 8

#pragma weak dladdr1 /* a musl program that a preloaded one has started has not got it */

struct site *sites[SITES];
static struct object *objects;
static struct runtime *runtimes;

static int zero(void)
{
    return 0;
}

static int one(void)
{
    return 1;
}

static void nothing(int unused)
{
    (void)unused;
}

/* Where nothing is found. The last number is its own. */
static const struct runtime none = {
    .number = RUNTIMES_MOST, .get_max_threads = one, .set_num_threads = nothing, .get_level = zero, .get_thread_num = zero,
    .get_num_threads = one, .get_proc_bind = zero,
};
static struct object nobody = {.runtime = &none};

static const void *base_of(const void *address, struct link_map **map)
{
    Dl_info about;
    return address && dladdr1 && dladdr1(address, &about, (void **)map, RTLD_DL_LINKMAP) ? about.dli_fbase : NULL;
}

static void find(void *file, const char *name, int (**function)(void), int (*otherwise)(void))
{
    void *found = dlsym(file, name);
    *function = otherwise;
    if (found)
        *(void **)function = found;
}

/* The file stays loaded for ever: its functions are called from here. NULL when it is no runtime. */
static struct runtime *read_runtime(const void *base, const char *path)
{
    static const char *const names[] = {
#define NAME(name) #name,
        GOMP_ENTRIES(NAME)
#undef NAME
    };
    void *file = dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    void *set = file ? dlsym(file, "omp_set_num_threads") : NULL;
    struct runtime *runtime = set ? calloc(1, sizeof *runtime) : NULL;
    if (!runtime)
        return NULL;
    runtime->base = base;
    runtime->is_llvm = dlsym(file, "__kmpc_fork_call") != NULL;
    *(void **)&runtime->set_num_threads = set;
    find(file, "omp_get_max_threads", &runtime->get_max_threads, one);
    find(file, "omp_get_level", &runtime->get_level, zero);
    find(file, "omp_get_thread_num", &runtime->get_thread_num, zero);
    find(file, "omp_get_num_threads", &runtime->get_num_threads, one);
    find(file, "omp_get_proc_bind", &runtime->get_proc_bind, zero);
    for (int i = 0; i < GOMP_ENTRY_COUNT; i++)
        runtime->entry[i] = dlsym(file, names[i]);
    return runtime;
}

static const struct runtime *known_runtime(const struct runtime *first, const void *base)
{
    while (first && first->base != base)
        first = first->next;
    return first;
}

static const struct runtime *keep_runtime(struct runtime *mine, const char *path)
{
    struct runtime *first = __atomic_load_n(&runtimes, __ATOMIC_ACQUIRE);
    do {
        const struct runtime *known = known_runtime(first, mine->base);
        mine->next = first;
        mine->number = first ? first->number + 1 : 0;
        if (known || mine->number >= RUNTIMES_MOST) {
            free(mine);
            return known ? known : &none;
        }
    } while (!__atomic_compare_exchange_n(&runtimes, &first, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    have_points(mine->is_llvm ? DROM_POINTS_LIBOMP : DROM_POINTS_LIBGOMP);
    dromi_log("openmp", "runtime=%s number=%u", path, mine->number);
    return mine;
}

const struct runtime *runtime_of(const void *function)
{
    struct link_map *map;
    const void *base = base_of(function, &map);
    const struct runtime *known = known_runtime(__atomic_load_n(&runtimes, __ATOMIC_ACQUIRE), base);
    if (known || !base)
        return known ? known : &none;
    struct runtime *mine = read_runtime(base, map->l_name);
    return mine ? keep_runtime(mine, map->l_name) : &none;
}

static int is_runtime(struct dl_phdr_info *info, size_t size, void *found)
{
    static const char *const names[] = {"/libgomp", "/libomp", "/libiomp5"};
    (void)size;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(info->dlpi_name, names[i])) {
            *(const char **)found = info->dlpi_name;
            return 1;
        }
    return 0;
}

static const void *look_in(const char *path)
{
    void *file = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    const void *found = file ? dlsym(file, "omp_set_num_threads") : NULL;
    if (file)
        dlclose(file);
    return found;
}

/* The runtime that would serve a file if we were not there: the first that the program was loaded with, or that of the
 * file's own libraries, which may be loaded for it alone, or whichever there is. */
static const struct runtime *runtime_for(const char *path)
{
    struct link_map *map;
    const char *any = NULL;
    const void *own = base_of((void *)runtime_for, &map);
    const void *found = dlsym(RTLD_NEXT, "omp_set_num_threads");
    if (!found && path[0])
        found = look_in(path);
    if (found && base_of(found, &map) == own)
        found = NULL;
    if (!found && dl_iterate_phdr(is_runtime, &any))
        found = look_in(any);
    return runtime_of(found);
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
    while (first && first->base != base)
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

/* Code that was made at run time is in no file, and is taken for the program's. */
static struct object *find_object(const void *address)
{
    struct link_map *map = NULL;
    const void *base = base_of(address, &map);
    struct object *known = known_object(__atomic_load_n(&objects, __ATOMIC_ACQUIRE), base);
    if (known)
        return known;
    const struct runtime *runtime = runtime_for(base ? map->l_name : "");
    struct object *mine = runtime != &none ? calloc(1, sizeof *mine) : NULL;
    if (!mine)
        return &nobody;
    mine->base = base;
    mine->runtime = runtime;
    mine->is_blas = base && has_blas(base, map->l_name);
    dl_iterate_phdr(read_thread_data, mine);
    return keep_object(mine);
}

struct object *look_up(const void *address)
{
    struct site **free_site = NULL;
    for (size_t i = 0; i < TRIES && !free_site; i++) {
        struct site **at = &sites[(first_place(address) + i) % SITES];
        const struct site *site = __atomic_load_n(at, __ATOMIC_ACQUIRE);
        if (site && site->address == address)
            return site->object;
        free_site = site ? NULL : at;
    }
    struct object *object = find_object(address);
    struct site *mine = free_site && object->base ? malloc(sizeof *mine) : NULL, *expected = NULL;
    if (mine) {
        *mine = (struct site){address, object};
        if (!__atomic_compare_exchange_n(free_site, &expected, mine, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            free(mine);
    }
    return object;
}
