/* SPDX-License-Identifier: Apache-2.0 */
/* Interception of calls without exporting names that the program could find.
 *
 * Functions of OpenMP runtimes have versions. The wrappers are exported only under those versions, none of them the default: the
 * loader binds to them the references of files that were linked to such a runtime, and no reference without a version, weak or by
 * dlsym().
 *
 * Functions of MPI have no versions, nor do calls of a file that was not linked to the OpenMP runtime that it uses. There hooks.c
 * replaces the addresses that the loader has written into each file, if they are those of an MPI library or a runtime. */
#ifndef DROM_HOOKS_H
#define DROM_HOOKS_H

#include <stdbool.h>
#include <stddef.h>

#define PUBLIC __attribute__((visibility("default")))

/* The assembler name of the wrapper of `name`. */
#define FRONT_OF(name) __asm__("drom_front_" #name)

/* Export a wrapper under a version of exports.map. The tool exports one name only, without a version. */
#ifdef DROM_TOOL
#define EXPORT(name, version) _Static_assert(sizeof #version, "")
#else
#define EXPORT(name, version) __asm__(".symver drom_front_" #name "," #name "@" #version)
#endif

/* Export a wrapper of a function of the C library. */
#ifdef __x86_64__
#define EXPORT_LIBC(name)                                                                                                    \
    EXPORT(name, GLIBC_2.2.5);                                                                                               \
    EXPORT(name, GLIBC_2.34)
#else
#define EXPORT_LIBC(name)                                                                                                    \
    EXPORT(name, GLIBC_2.17);                                                                                                \
    EXPORT(name, GLIBC_2.34)
#endif

/* A wrapper (`ours`), and the name of the function that it intercepts. */
struct front {
    const char *name;
    void *ours;
};

extern const struct front mpi_fronts[], call_fronts[], entry_fronts[], exec_fronts[];
extern const size_t mpi_front_count, call_front_count, entry_front_count, exec_front_count;

/* Return the function of MPI with this name in this process, or NULL. */
void *find_mpi(const char *name);

/* Return whether the program has got a function that sets the number of threads from dlsym(): it may have set one directly. */
bool is_setter_known(void);

/* Replace addresses in the files loaded since the last call. Not in callbacks of the loader or signal handlers. */
void hook_files(void);

#endif
