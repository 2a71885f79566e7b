/* SPDX-License-Identifier: Apache-2.0 */
/* Included before all else in what is installed: programs and libraries then start with any glibc from 2.17 on, whichever compiled
 * them. Without this they would ask for the newest version of a function, and not start where there is an older one: on older
 * systems, and in containers. With DROM_ANY_GLIBC versions are left to who links. */
#ifndef DROM_OLD_GLIBC_H
#define DROM_OLD_GLIBC_H

#include <features.h>

/* strtol() and scanf() of C23 are new functions, which _GNU_SOURCE asks for. */
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#if defined __GLIBC__ && (defined __x86_64__ || defined __aarch64__) && !defined DROM_ANY_GLIBC

#if defined __x86_64__
#define SINCE(x86_64) "GLIBC_" #x86_64
#else
#define SINCE(x86_64) "GLIBC_2.17"
#endif
#define TAKE(name, x86_64) __asm__(".symver " #name "," #name "@" SINCE(x86_64))

TAKE(dlclose, 2.2.5);
TAKE(dlerror, 2.2.5);
TAKE(dlopen, 2.2.5);
TAKE(dlsym, 2.2.5);
TAKE(dladdr1, 2.3.3);
TAKE(pthread_mutex_trylock, 2.2.5);
TAKE(pthread_once, 2.2.5);

#endif
#endif
