/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that reach us although the program can find no name of ours.
 *
 * Functions of OpenMP runtimes have versions. Ours are exported under those versions alone, none of them the default: the
 * loader binds to them what was linked to such a runtime, and nothing that asks by the plain name, weakly or by dlsym().
 *
 * Functions of MPI have no versions, nor do calls of a file that was not linked to the OpenMP runtime that it uses. There the
 * addresses that the loader has put into each file are replaced (hooks.c), where they are those of an MPI library or a runtime. */
#ifndef DROM_HOOKS_H
#define DROM_HOOKS_H

#include <stdbool.h>
#include <stddef.h>

#define PUBLIC __attribute__((visibility("default")))

/* The name in assembler of a function that stands in front of `name`. */
#define FRONT_OF(name) __asm__("drom_front_" #name)

/* Export it under a version, which exports.map has. The tool shows no name but one, and that plainly. */
#ifdef DROM_TOOL
#define EXPORT(name, version) _Static_assert(sizeof #version, "")
#else
#define EXPORT(name, version) __asm__(".symver drom_front_" #name "," #name "@" #version)
#endif

/* One that stands in front of a function of the C library. */
#ifdef __x86_64__
#define EXPORT_LIBC(name)                                                                                                    \
    EXPORT(name, GLIBC_2.2.5);                                                                                               \
    EXPORT(name, GLIBC_2.34)
#else
#define EXPORT_LIBC(name)                                                                                                    \
    EXPORT(name, GLIBC_2.17);                                                                                                \
    EXPORT(name, GLIBC_2.34)
#endif

/* A function of ours, and the name of what it stands in front of. */
struct front {
    const char *name;
    void *ours;
};

extern const struct front mpi_fronts[], call_fronts[], entry_fronts[], exec_fronts[];
extern const size_t mpi_front_count, call_front_count, entry_front_count, exec_front_count;

/* What a function of MPI is in this process, or NULL. */
void *find_mpi(const char *name);

/* Whether the program has asked the loader for a function that sets a number of threads: it may have set one past us. */
bool is_setter_known(void);

/* Replace addresses in the files that have been loaded since. Outside the loader's callbacks and outside signal handlers. */
void hook_files(void);

#endif
