/* SPDX-License-Identifier: Apache-2.0 */
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "task.h"

/* A file as bytes. Every access is checked, because a program may be damaged or malicious. */
struct image {
    const char *bytes;
    size_t size;
    const ElfW(Phdr) *headers;
    size_t count;
};

static const void *at(const struct image *image, uint64_t offset, uint64_t size)
{
    return offset <= image->size && size <= image->size - offset ? image->bytes + offset : NULL;
}

/* The same for data that must be aligned to words, as compilers and linkers do. */
static const void *words_at(const struct image *image, uint64_t offset, uint64_t size)
{
    return offset % sizeof(ElfW(Addr)) == 0 ? at(image, offset, size) : NULL;
}

static const char *text_at(const struct image *image, uint64_t offset)
{
    const char *text = at(image, offset, 1);
    return text && memchr(text, '\0', image->size - offset) ? text : NULL;
}

static const ElfW(Phdr) *header_of(const struct image *image, uint32_t type)
{
    for (size_t i = 0; i < image->count; i++)
        if (image->headers[i].p_type == type)
            return &image->headers[i];
    return NULL;
}

/* Return the file offset of an address in memory, or the file's size if it has none. */
static uint64_t offset_of(const struct image *image, uint64_t address)
{
    for (size_t i = 0; i < image->count; i++) {
        const ElfW(Phdr) *part = &image->headers[i];
        if (part->p_type == PT_LOAD && address >= part->p_vaddr && address - part->p_vaddr < part->p_filesz)
            return part->p_offset + (address - part->p_vaddr);
    }
    return image->size;
}

static void read_needed(struct program *program, const struct image *image)
{
    const ElfW(Phdr) *part = header_of(image, PT_DYNAMIC);
    const ElfW(Dyn) *dynamic = part ? words_at(image, part->p_offset, part->p_filesz) : NULL;
    size_t count = dynamic ? part->p_filesz / sizeof *dynamic : 0;
    uint64_t strings = image->size;
    for (size_t i = 0; i < count && dynamic[i].d_tag != DT_NULL; i++)
        if (dynamic[i].d_tag == DT_STRTAB)
            strings = offset_of(image, dynamic[i].d_un.d_ptr);
    for (size_t i = 0; i < count && dynamic[i].d_tag != DT_NULL; i++) {
        const char *name = dynamic[i].d_tag == DT_NEEDED ? text_at(image, strings + dynamic[i].d_un.d_val) : NULL;
        if (name && (strncmp(name, "libasan.so", 10) == 0 || strncmp(name, "libclang_rt.asan", 16) == 0))
            program->is_asan = true;
    }
}

static void read_elf(struct program *program, struct image *image)
{
    const unsigned char *ident = at(image, 0, EI_NIDENT);
    program->is_elf = ident && memcmp(ident, ELFMAG, SELFMAG) == 0;
    const ElfW(Ehdr) *own = at(image, 0, sizeof *own);
    if (!program->is_elf || !own)
        return;
#if defined __x86_64__
    const uint16_t machine = EM_X86_64;
#elif defined __aarch64__
    const uint16_t machine = EM_AARCH64;
#else
    const uint16_t machine = own->e_machine;
#endif
    program->foreign = ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) || own->e_machine != machine;
    image->headers = words_at(image, own->e_phoff, (uint64_t)own->e_phnum * sizeof *image->headers);
    if (program->foreign || !image->headers || own->e_phentsize != sizeof *image->headers)
        return;
    image->count = own->e_phnum;
    const ElfW(Phdr) *loader = header_of(image, PT_INTERP);
    const char *name = loader ? text_at(image, loader->p_offset) : NULL;
    program->is_static = !loader;
    program->is_musl = name && strstr(name, "ld-musl");
    if (name && !program->is_musl && strlen(name) < sizeof program->loader)
        memcpy(program->loader, name, strlen(name) + 1);
    read_needed(program, image);
}

void read_program(struct program *program, const char *path)
{
    struct stat about;
    memset(program, 0, sizeof *program);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return;
    if (dromi_stat(fd, NULL, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes != MAP_FAILED) {
            struct image image = {.bytes = bytes, .size = (size_t)about.st_size};
            read_elf(program, &image);
            munmap(bytes, image.size);
        }
    }
    close(fd);
}
