/* SPDX-License-Identifier: Apache-2.0 */
/* Included first in everything that is installed, so that programs and libraries start with any glibc from 2.17 on, whichever
 * they were compiled with. Otherwise they would be linked to the newest version of a function, and fail to start with an older
 * glibc: on older systems, and in containers. With DROM_ANY_GLIBC the final link decides the versions. */
#ifndef DROM_OLD_GLIBC_H
#define DROM_OLD_GLIBC_H

#include <features.h>

/* With _GNU_SOURCE, strtol() and scanf() would be the new functions of C23. */
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
