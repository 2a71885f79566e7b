/* SPDX-License-Identifier: Apache-2.0 */
/* Start a program with the function of glibc 2.2.5 instead of that of 2.34, which the linker would choose:
 * `--wrap=__libc_start_main`. Before glibc 2.34 the old one runs no constructors of the program itself unless it is given `init`;
 * programs of drom have none. */
typedef int entry(int, char **, char **);
typedef void hook(void);

#ifdef SINCE
int start_main(entry *, int, char **, hook *, hook *, hook *, void *);
__asm__(".symver start_main,__libc_start_main@" SINCE(2.2.5));
#else
int start_main(entry *, int, char **, hook *, hook *, hook *, void *) __asm__("__real___libc_start_main");
#endif

int __wrap___libc_start_main(entry *, int, char **, hook *, hook *, hook *, void *);

int __wrap___libc_start_main(entry *run, int argc, char **argv, hook *init, hook *fini, hook *end, void *stack_end)
{
    return start_main(run, argc, argv, init, fini, end, stack_end);
}
