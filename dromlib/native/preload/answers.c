/* SPDX-License-Identifier: Apache-2.0 */
#include "answers.h"

#include <stddef.h>

/* Another thread has a setting of its own, that at its launch, which nobody changes once the file has asked. */
static bool is_owner(struct answers *a)
{
    static _Thread_local char self;
    const void *owner = __atomic_load_n(&a->owner, __ATOMIC_RELAXED), *nobody = NULL;
    if (!owner && __atomic_compare_exchange_n(&a->owner, &nobody, &self, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return true;
    if (owner == &self)
        return true;
    __atomic_store_n(&a->shared, true, __ATOMIC_RELAXED);
    return false;
}

static struct place *find_place(struct answers *a, const void *address)
{
    for (unsigned i = 0; i < a->count && i < PLACES_MOST; i++)
        if (a->places[i].address == address)
            return &a->places[i];
    return NULL;
}

static void note(struct answers *a, const void *address)
{
    struct place *place = find_place(a, address);
    a->given++;
    if (!place) {
        unsigned number = a->count;
        __atomic_store_n(&a->count, number + (number <= PLACES_MOST), __ATOMIC_RELAXED);
        if (number >= PLACES_MOST)
            return;
        place = &a->places[number];
        place->address = address;
    }
    place->before = place->last;
    place->last = a->given;
}

static void note_region(struct answers *a)
{
    if (!__atomic_load_n(&a->heard, __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&a->heard, false, __ATOMIC_RELAXED);
    note(a, a->region);
}

static bool may_change(const struct answers *a, const void *address)
{
    const struct place *first = a->places;
    if (first->address != address || a->count > PLACES_MOST || __atomic_load_n(&a->shared, __ATOMIC_RELAXED))
        return false;
    for (unsigned i = 1; i < a->count; i++)
        if (a->places[i].last <= first->last || a->places[i].before <= first->before)
            return false;
    return true;
}

static bool has_asked(const struct answers *a)
{
    return __atomic_load_n(&a->count, __ATOMIC_RELAXED) || __atomic_load_n(&a->heard, __ATOMIC_RELAXED);
}

int answer_region(struct answers *a, const void *address, int launch, int grant)
{
    if (!is_owner(a))
        return has_asked(a) ? launch : grant;
    note_region(a);
    if (a->told == 0) /* it may well ask in its first region, and keep that number */
        a->told = launch;
    else if (a->count == 0 || (!a->asked_outside && may_change(a, address)))
        a->told = grant;
    a->region = address;
    a->forked = true;
    return a->told;
}

int answer_call(struct answers *a, const void *address, int launch, int grant)
{
    if (!is_owner(a))
        return launch;
    note_region(a);
    if (a->count == 0)
        a->told = launch;
    else if (a->forked && may_change(a, address))
        a->told = grant;
    note(a, address);
    a->asked_outside = true;
    a->forked = false;
    return a->told;
}

void keep_number(struct answers *a, const void *address, int number)
{
    if (!is_owner(a))
        return;
    note_region(a);
    note(a, address);
    a->asked_outside = true;
    a->told = number;
}
