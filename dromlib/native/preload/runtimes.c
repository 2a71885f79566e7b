/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the OpenMP runtimes of the process, and the one that serves a file. The list of runtimes only grows and has no lock: a
 * thread that loads a library may hold the loader's lock when a constructor calls these functions. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "openmp.h"

#pragma weak dlvsym /* missing in a musl program that a preloaded one has started */
#ifdef TAKE
TAKE(dlvsym, 2.2.5);
#endif

static struct runtime *runtimes;

static int zero(void)
{
    return 0;
}

static int one(void)
{
    return 1;
}

static int one_at(int unused)
{
    (void)unused;
    return 1;
}

static int most(void)
{
    return INT_MAX;
}

static void nothing(int unused)
{
    (void)unused;
}

/* Used if no runtime is found. */
const struct runtime no_runtime = {
    .number = RUNTIMES_MOST, .get_max_threads = one, .set_num_threads = nothing, .get_level = zero, .get_thread_num = zero,
    .get_num_threads = one, .get_team_size = one_at, .get_proc_bind = zero, .get_num_procs = one, .get_thread_limit = most,
};
static const char *const entry_names[] = {
#define NAME(name, version) #name,
    GOMP_ENTRIES(NAME)
#undef NAME
};

static const char marker[] = "omp_get_level"; /* tools that wrap a runtime have some of its functions, hardly this one */
static const char marker_version[] = "OMP_3.0"; /* of the marker in runtimes with GNU's versions */

/* Where the functions of a runtime are searched, in this order. */
struct scopes {
    void *first, *second;
};

static void *find(struct scopes in, const char *name)
{
    void *found = dlsym(in.first, name);
    return found ? found : dlsym(in.second, name);
}

#define FIND(in, runtime, name, otherwise)                                                                                   \
    do {                                                                                                                     \
        void *found = find(in, "omp_" #name);                                                                                \
        (runtime)->name = otherwise;                                                                                         \
        if (found)                                                                                                           \
            *(void **)&(runtime)->name = found;                                                                              \
    } while (0)

/* Return whether the program's calls are bound to the wrappers. They are not if this library is loaded late, as the tool that
 * OMP_TOOL_LIBRARIES names. */
static bool is_in_front(void)
{
    struct link_map *map;
    void *program = dlvsym ? dlopen(NULL, RTLD_LAZY) : NULL;
    bool is = program && base_of(dlvsym(program, "omp_get_max_threads", "OMP_1.0"), &map) == base_of(&runtimes, &map);
    if (program)
        dlclose(program);
    return is;
}

/* Get the functions of a runtime; NULL if the file is none. It stays loaded for ever, as they are called from here. If the loader
 * finds them by name, they are searched by name here too, so that a tool that wraps them gets these calls. */
static struct runtime *read_runtime(const void *base, const char *path)
{
    struct link_map *map;
    void *file = dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    struct runtime *runtime = file && dlsym(file, marker) ? calloc(1, sizeof *runtime) : NULL;
    if (!runtime)
        return NULL;
    bool is_global = base_of(dlsym(RTLD_NEXT, marker), &map) == base;
    struct scopes in = is_global ? (struct scopes){RTLD_NEXT, file} : (struct scopes){file, RTLD_NEXT};
    runtime->base = base;
    runtime->is_queried_directly = !is_in_front();
    runtime->is_llvm = dlsym(file, "__kmpc_fork_call") != NULL;
    FIND(in, runtime, get_max_threads, one);
    FIND(in, runtime, set_num_threads, nothing);
    FIND(in, runtime, get_level, zero);
    FIND(in, runtime, get_thread_num, zero);
    FIND(in, runtime, get_num_threads, one);
    FIND(in, runtime, get_team_size, one_at);
    FIND(in, runtime, get_proc_bind, zero);
    FIND(in, runtime, get_num_procs, one);
    FIND(in, runtime, get_thread_limit, most);
    for (int i = 0; i < GOMP_ENTRY_COUNT; i++)
        runtime->entry[i] = find(in, entry_names[i]);
    return runtime;
}

/* For calls that were bound to a wrapper before the runtime was known. */
__attribute__((cold)) void *find_entry(enum gomp_entry which)
{
    void *found = dlsym(RTLD_NEXT, entry_names[which]);
    if (!found) {
        fprintf(stderr, "drom: no OpenMP runtime of this process has %s.\n", entry_names[which]);
        abort();
    }
    return found;
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
        mine->number = first ? first->number + (first->number < RUNTIMES_MOST) : 0;
        if (known) {
            free(mine);
            return known;
        }
    } while (!__atomic_compare_exchange_n(&runtimes, &first, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    report_points(mine->is_llvm ? DROM_POINTS_LIBOMP : DROM_POINTS_LIBGOMP);
    dromi_log("openmp", "runtime=%s number=%u", path, mine->number);
    return mine;
}

const struct runtime *runtime_of(const void *function)
{
    struct link_map *map;
    const void *base = base_of(function, &map);
    const struct runtime *known = known_runtime(__atomic_load_n(&runtimes, __ATOMIC_ACQUIRE), base);
    if (known || !base)
        return known ? known : &no_runtime;
    struct runtime *mine = read_runtime(base, map->l_name);
    return mine ? keep_runtime(mine, map->l_name) : &no_runtime;
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

/* With NULL, any version. */
static const void *find_marker(void *in, const char *version)
{
    return version ? dlvsym(in, marker, version) : dlsym(in, marker);
}

static const void *look_in(const char *path, const char *version)
{
    void *file = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    const void *found = file ? find_marker(file, version) : NULL;
    if (file)
        dlclose(file);
    return found;
}

/* Return the address in an entry of a file's dynamic section. The loader has relocated some of these values, and not others. */
static const void *section(const struct link_map *map, ElfW(Sxword) tag)
{
    for (const ElfW(Dyn) *each = map->l_ld; each && each->d_tag != DT_NULL; each++)
        if (each->d_tag == tag)
            return (const void *)(each->d_un.d_ptr < map->l_addr ? map->l_addr + each->d_un.d_ptr : each->d_un.d_ptr);
    return NULL;
}

static bool needs(const struct link_map *map, const struct link_map *library)
{
    const char *names = section(map, DT_STRTAB), *library_names = section(library, DT_STRTAB), *own = library->l_name;
    for (const ElfW(Dyn) *each = library->l_ld; library_names && each && each->d_tag != DT_NULL; each++)
        if (each->d_tag == DT_SONAME)
            own = library_names + each->d_un.d_val;
    for (const ElfW(Dyn) *each = map->l_ld; names && each && each->d_tag != DT_NULL; each++)
        if (each->d_tag == DT_NEEDED &&
            (strcmp(names + each->d_un.d_val, own) == 0 || strcmp(names + each->d_un.d_val, library->l_name) == 0))
            return true;
    return false;
}

/* A library, and the file that it was loaded for. */
struct loaded {
    const struct link_map *library;
    char path[PATH_MAX];
};

/* In dl_iterate_phdr(), during which nothing is unloaded. The loader lists a file before the libraries that it needs, unless these
 * were loaded before. */
static int find_first(struct dl_phdr_info *info, size_t size, void *at)
{
    enum { MOST = 64 };
    struct loaded *loaded = at;
    const struct link_map *on_the_way[MOST] = {loaded->library};
    size_t count = 1;
    (void)info, (void)size;
    for (const struct link_map *each = loaded->library->l_prev; each && count < MOST; each = each->l_prev)
        for (size_t i = 0; i < count && each->l_name[0]; i++)
            if (needs(each, on_the_way[i])) {
                on_the_way[count++] = each;
                break;
            }
    snprintf(loaded->path, sizeof loaded->path, "%s", on_the_way[count - 1]->l_name);
    return 1;
}

/* Return the runtime that provides a file's functions with such versions: the first one with them that was loaded with the program,
 * or that of the libraries that were loaded with the file. */
static const void *look_by_version(const struct link_map *map, const char *in, bool (*is_like)(const char *), const char *marked)
{
    const char *names = section(map, DT_STRTAB);
    const ElfW(Verneed) *file = section(map, DT_VERNEED);
    while (names && file) {
        const ElfW(Vernaux) *version = (const void *)((const char *)file + file->vn_aux);
        for (unsigned i = 0; i < file->vn_cnt; i++) {
            const char *name = names + version->vna_name;
            const void *found = NULL;
            if (is_like(name)) {
                found = find_marker(RTLD_NEXT, marked ? marked : name);
                if (!found && in[0])
                    found = look_in(in, marked ? marked : name);
            }
            if (found)
                return found;
            version = (const void *)((const char *)version + version->vna_next);
        }
        file = file->vn_next ? (const void *)((const char *)file + file->vn_next) : NULL;
    }
    return NULL;
}

static bool is_gnus(const char *version)
{
    return strncmp(version, "OMP_", 4) == 0;
}

static bool is_llvms(const char *version)
{
    return strcmp(version, "VERSION") == 0;
}

static bool is_gnus_entry(const char *version)
{
    return strncmp(version, "GOMP_", 5) == 0;
}

/* The loader binds a call to a function of the version that its file was linked to. LLVM's runtime also has GNU's versions; GNU's
 * has none of LLVM's. A file may have calls to both, by their names; then the intercepted functions decide. */
static const void *look_as_loader(const struct link_map *map, const char *in)
{
    const void *found = look_by_version(map, in, is_gnus, marker_version);
    if (!found)
        found = look_by_version(map, in, is_llvms, NULL);
    return found ? found : look_by_version(map, in, is_gnus_entry, marker_version);
}

/* Return the runtime that would serve a file without drom: the one that its calls would be bound to, or the first that was loaded
 * with the program, or that of the libraries that were loaded with the file, perhaps with RTLD_LOCAL, or any other. */
const struct runtime *runtime_for(const struct link_map *map)
{
    const char *any = NULL;
    struct loaded loaded = {map, ""};
    if (map)
        dl_iterate_phdr(find_first, &loaded);
    const void *found = map && dlvsym ? look_as_loader(map, loaded.path) : NULL;
    if (!found)
        found = find_marker(RTLD_NEXT, NULL);
    if (!found && loaded.path[0])
        found = look_in(loaded.path, NULL);
    if (!found && dl_iterate_phdr(is_runtime, &any))
        found = look_in(any, NULL);
    return runtime_of(found);
}
