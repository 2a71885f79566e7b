/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces addresses that the loader has written into files, for their calls of MPI and of functions of the loader. */
#include "hooks.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "openmp.h"

enum { MOST_HOOKS = 512, MOST_EXEC = 8, SLOTS_AT_FIRST = 256 };

#if defined __x86_64__
enum { JUMP = R_X86_64_JUMP_SLOT, POINTER = R_X86_64_GLOB_DAT, WORD = R_X86_64_64 };
#elif defined __aarch64__
enum { JUMP = R_AARCH64_JUMP_SLOT, POINTER = R_AARCH64_GLOB_DAT, WORD = R_AARCH64_ABS64 };
#else
enum { JUMP = 0, POINTER = 0, WORD = 0 }; /* nothing is replaced */
#endif

struct hook {
    struct front front;
    bool is_plain;  /* only for calls without a version: the loader binds the others to this library */
    bool is_wanted; /* a file calls it */
    void *target;   /* the function that is intercepted; NULL: not loaded yet */
};

/* A part of a file's memory. */
struct range {
    uintptr_t start, end;
};

/* The location of a function's address in a file. */
struct slot {
    void **at;
    struct hook *hook;
    struct range file, sealed; /* the latter is made read-only by the loader */
};

static struct hook hooks[MOST_HOOKS];
static size_t hook_count;
static struct slot first_slots[SLOTS_AT_FIRST], *slots = first_slots;
static size_t slot_count, slot_room = SLOTS_AT_FIRST;
static unsigned long long known_subs; /* how many files have ever been unloaded */
static size_t known_files;            /* read so far; the loader appends new ones to its list */
static unsigned opened, hooked_at;    /* how many files the program has opened; the same when they were hooked last */
static _Thread_local bool has_opened;
static bool has_setter;
static int busy;

static void *jump_to_dlopen(const char *path, int flags);
static void *jump_to_dlsym(void *handle, const char *name);
static struct hook of_dlopen = {.front = {"dlopen", (void *)jump_to_dlopen}};
static struct hook of_exec[MOST_EXEC];
static struct hook of_dlsym = {.front = {"dlsym", (void *)jump_to_dlsym}};

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct hook *)a)->front.name, ((const struct hook *)b)->front.name);
}

static void add_hooks(const struct front *fronts, size_t count, bool is_plain)
{
    for (size_t i = 0; i < count && hook_count < MOST_HOOKS; i++)
        hooks[hook_count++] = (struct hook){.front = fronts[i], .is_plain = is_plain};
}

/* Only when a file calls such a function: most processes have none. */
static void make_hooks(void)
{
    add_hooks(mpi_fronts, mpi_front_count, false);
    add_hooks(call_fronts, call_front_count, true);
    add_hooks(entry_fronts, entry_front_count, true);
    qsort(hooks, hook_count, sizeof *hooks, compare);
}

static struct hook *find_exec(const char *name)
{
    for (size_t i = 0; i < exec_front_count; i++)
        if (strcmp(name, exec_fronts[i].name) == 0) {
            of_exec[i].front = exec_fronts[i];
            return &of_exec[i];
        }
    return NULL;
}

static struct hook *find_hook(const char *name, bool has_version)
{
    struct hook key = {.front = {name, NULL}};
    if (name[0] == 'd')
        return strcmp(name, "dlopen") == 0 ? &of_dlopen : strcmp(name, "dlsym") == 0 ? &of_dlsym : NULL;
    if (name[0] == 'e' || name[0] == 'p')
        return find_exec(name);
    bool is_mpi = strncmp(name, "MPI_", 4) == 0 || strncmp(name, "mpi_", 4) == 0;
    bool is_plain = !has_version && (strncmp(name, "GOMP_", 5) == 0 || strncmp(name, "omp_", 4) == 0);
    if (!is_mpi && !is_plain)
        return NULL;
    if (hook_count == 0)
        make_hooks();
    return bsearch(&key, hooks, hook_count, sizeof *hooks, compare);
}

/* Use mmap(): in dl_iterate_phdr() the program's malloc() may wait for a thread that waits to enter dl_iterate_phdr(), too. */
static bool has_room(void)
{
    if (slot_count < slot_room)
        return true;
    struct slot *more = mmap(NULL, 2 * slot_room * sizeof *more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED)
        return false;
    memcpy(more, slots, slot_count * sizeof *more);
    if (slots != first_slots)
        munmap(slots, slot_room * sizeof *more);
    slots = more;
    slot_room *= 2;
    return true;
}

/* The parts of a file's dynamic section that are read. */
struct dynamic {
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Half) *versions;
    const ElfW(Rela) *calls, *others;
    size_t call_bytes, other_bytes, relative_count;
};

/* The loader has relocated some values in the dynamic section to addresses, and not others. */
static const void *address(const struct dl_phdr_info *info, ElfW(Addr) value)
{
    return (const void *)(value < info->dlpi_addr ? info->dlpi_addr + value : value);
}

static struct dynamic read_dynamic(const struct dl_phdr_info *info, const ElfW(Dyn) *each)
{
    struct dynamic d = {0};
    for (; each->d_tag != DT_NULL; each++)
        switch (each->d_tag) {
        case DT_SYMTAB: d.symbols = address(info, each->d_un.d_ptr); break;
        case DT_STRTAB: d.names = address(info, each->d_un.d_ptr); break;
        case DT_VERSYM: d.versions = address(info, each->d_un.d_ptr); break;
        case DT_JMPREL: d.calls = address(info, each->d_un.d_ptr); break;
        case DT_PLTRELSZ: d.call_bytes = each->d_un.d_val; break;
        case DT_RELA: d.others = address(info, each->d_un.d_ptr); break;
        case DT_RELASZ: d.other_bytes = each->d_un.d_val; break;
        case DT_RELACOUNT: d.relative_count = each->d_un.d_val; break;
        }
    return d;
}

static void find_slots(const struct dl_phdr_info *info, const struct dynamic *d, const ElfW(Rela) *list, size_t count,
                       const struct slot *of_file)
{
    for (const ElfW(Rela) *each = list; list && each < list + count; each++) {
        unsigned type = (unsigned)ELF64_R_TYPE(each->r_info), index = (unsigned)ELF64_R_SYM(each->r_info);
        if (index == 0 || (type != JUMP && type != POINTER && type != WORD) || each->r_addend != 0 ||
            d->symbols[index].st_shndx != SHN_UNDEF)
            continue;
        bool has_version = d->versions && (d->versions[index] & 0x7fff) > 1;
        struct hook *hook = find_hook(d->names + d->symbols[index].st_name, has_version);
        if (!hook || !has_room())
            continue;
        struct slot *slot = &slots[slot_count++];
        *slot = *of_file;
        slot->at = (void **)(info->dlpi_addr + each->r_offset);
        slot->hook = hook;
        hook->is_wanted |= *slot->at != NULL;
    }
}

static void read_file(const struct dl_phdr_info *info)
{
    const ElfW(Dyn) *dynamic = NULL;
    struct slot of_file = {.file.start = UINTPTR_MAX};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
        if (part->p_type == PT_DYNAMIC)
            dynamic = (const void *)start;
        else if (part->p_type == PT_GNU_RELRO)
            of_file.sealed = (struct range){start, end};
        else if (part->p_type == PT_LOAD) {
            of_file.file.start = start < of_file.file.start ? start : of_file.file.start;
            of_file.file.end = end > of_file.file.end ? end : of_file.file.end;
        }
    }
    uintptr_t here = (uintptr_t)&hooks;
    if (!dynamic || (here >= of_file.file.start && here < of_file.file.end))
        return;
    struct dynamic d = read_dynamic(info, dynamic);
    if (!d.symbols || !d.names)
        return;
    size_t others = d.other_bytes / sizeof *d.others;
    size_t relative = d.relative_count < others ? d.relative_count : others;
    find_slots(info, &d, d.calls, d.call_bytes / sizeof *d.calls, &of_file);
    find_slots(info, &d, d.others ? d.others + relative : NULL, others - relative, &of_file);
}

struct count {
    unsigned long long subs;
    size_t files;
};

static int count_files(struct dl_phdr_info *info, size_t size, void *at)
{
    struct count *count = at;
    (void)size;
    count->subs = info->dlpi_subs;
    count->files++;
    return 0;
}

struct reading {
    struct count all;
    size_t index;
    bool is_stale;
};

static int read_files(struct dl_phdr_info *info, size_t size, void *at)
{
    struct reading *reading = at;
    (void)size;
    reading->is_stale = info->dlpi_subs != reading->all.subs;
    if (reading->is_stale || reading->index >= reading->all.files)
        return 1;
    if (reading->index++ >= known_files)
        read_file(info);
    return 0;
}

/* Return whether a function belongs to an OpenMP runtime, not to a library of stubs. */
static bool is_of_runtime(const void *function)
{
    struct link_map *map;
    void *file = function && base_of(function, &map) ? dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    bool is = file && (dlsym(file, "GOMP_parallel") || dlsym(file, "__kmpc_fork_call"));
    if (file)
        dlclose(file);
    return is;
}

static void find_target(struct hook *hook)
{
    if (hook->target || !hook->is_wanted)
        return;
    void *target = dlsym(RTLD_DEFAULT, hook->front.name);
    if (hook->is_plain)
        target = is_of_runtime(target) ? target : NULL;
    else if (!target)
        target = find_mpi(hook->front.name);
    hook->target = target;
    if (!target)
        dlerror(); /* clears the error, so that the program's next dlerror() does not return it */
}

static void find_targets(void)
{
    find_target(&of_dlopen);
    find_target(&of_dlsym);
    for (size_t i = 0; i < MOST_EXEC; i++)
        find_target(&of_exec[i]);
    for (struct hook *hook = hooks; hook < hooks + hook_count; hook++)
        find_target(hook);
}

static void protect(const struct range *pages, int protection)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = pages->start & ~(page - 1), end = pages->end & ~(page - 1);
    if (end > start)
        mprotect((void *)start, end - start, protection);
}

/* Return whether a slot leads to the target: it has its address, or still that of the file's stub for lazy binding. */
static bool leads_to_target(const struct slot *slot)
{
    uintptr_t now = (uintptr_t)__atomic_load_n(slot->at, __ATOMIC_RELAXED);
    return slot->hook->target && now &&
           (now == (uintptr_t)slot->hook->target || (now >= slot->file.start && now < slot->file.end));
}

static int replace(struct dl_phdr_info *info, size_t size, void *at)
{
    struct reading *reading = at;
    const struct range *open = NULL;
    (void)size;
    reading->is_stale = info->dlpi_subs != reading->all.subs;
    for (const struct slot *slot = slots; slot < slots + slot_count && !reading->is_stale; slot++) {
        if (!leads_to_target(slot))
            continue;
        bool is_sealed = (uintptr_t)slot->at >= slot->sealed.start && (uintptr_t)slot->at < slot->sealed.end;
        if (is_sealed && !(open && open->start == slot->sealed.start)) {
            if (open)
                protect(open, PROT_READ);
            open = &slot->sealed;
            protect(open, PROT_READ | PROT_WRITE);
        }
        __atomic_store_n(slot->at, slot->hook->front.ours, __ATOMIC_RELAXED);
    }
    if (open)
        protect(open, PROT_READ);
    return 1;
}

/* Hook all files that are loaded. A thread that loads a file holds the loader's lock until all addresses are there; so once this
 * thread has had that lock, by dlopen(), the files counted before are complete. Return whether none was unloaded meanwhile. */
static bool hook_once(void)
{
    struct reading reading = {0};
    dl_iterate_phdr(count_files, &reading.all);
    void *program = dlopen(NULL, RTLD_LAZY);
    if (program)
        dlclose(program);
    if (reading.all.subs != known_subs)
        known_files = slot_count = 0;
    known_subs = reading.all.subs;
    dl_iterate_phdr(read_files, &reading);
    if (!reading.is_stale) {
        known_files = reading.all.files;
        find_targets();
        dl_iterate_phdr(replace, &reading);
    }
    if (reading.is_stale)
        known_files = slot_count = 0;
    return !reading.is_stale;
}

void hook_files(void)
{
    enum { TRIES = 3 };
    unsigned now = __atomic_load_n(&opened, __ATOMIC_RELAXED);
    if (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
        return; /* another thread does it, or one that has not survived a fork */
    has_opened = false;
    __atomic_store_n(&hooked_at, now, __ATOMIC_RELAXED);
    for (int i = 0; i < TRIES && !hook_once(); i++)
        ;
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
}

static void hook_new_files(void)
{
    if (has_opened || __atomic_load_n(&opened, __ATOMIC_RELAXED) != __atomic_load_n(&hooked_at, __ATOMIC_RELAXED))
        hook_files();
}

/* The loader uses its caller's address: the caller's search path, and the order of files after it. So these end in tail calls, and
 * the caller remains the program's file. */
#ifdef __clang__
#define JUMPS
#else
#define JUMPS __attribute__((optimize("O2", "no-stack-protector")))
#endif

/* A file that is opened is hooked by the time that dlsym() returns one of its functions. */
JUMPS static void *jump_to_dlopen(const char *path, int flags)
{
    void *(*real)(const char *, int) = of_dlopen.target;
    forget_unloaded();
    hook_new_files();
    __atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED);
    has_opened = true;
    return real(path, flags);
}

JUMPS static void *jump_to_dlsym(void *handle, const char *name)
{
    void *(*real)(void *, const char *) = of_dlsym.target;
    hook_new_files();
    if (name && strncmp(name, "omp_set_num_threads", 19) == 0)
        __atomic_store_n(&has_setter, true, __ATOMIC_RELAXED);
    return real(handle, name);
}

bool is_setter_known(void)
{
    return __atomic_load_n(&has_setter, __ATOMIC_RELAXED);
}

/* The tool only gets regions. */
#ifndef DROM_TOOL
__attribute__((constructor)) static void hook_program(void)
{
    hook_files();
}
#endif
