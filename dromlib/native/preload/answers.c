/* SPDX-License-Identifier: Apache-2.0 */
#include "answers.h"

#include <stddef.h>

_Thread_local char calling_thread;

static bool is_owner(struct answers *a)
{
    const void *owner = __atomic_load_n(&a->owner, __ATOMIC_RELAXED), *nobody = NULL;
    return owner == &calling_thread ||
           (!owner && __atomic_compare_exchange_n(&a->owner, &nobody, &calling_thread, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

int keep_for_good(struct answers *a)
{
    int told = __atomic_load_n(&a->told, __ATOMIC_RELAXED);
    while (told > 0) {
        int kept = __atomic_load_n(&a->turn, __ATOMIC_RELAXED) ? -told : -WHOLE;
        if (__atomic_compare_exchange_n(&a->told, &told, kept, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            told = kept;
    }
    return -told;
}

/* By the owner; returns what is then in use: another thread may just have come. */
static int change(struct answers *a, int number)
{
    int told = __atomic_load_n(&a->told, __ATOMIC_RELAXED);
    while (told > 0 && told != number)
        if (__atomic_compare_exchange_n(&a->told, &told, number, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            told = number;
    return told < 0 ? -told : told;
}

void hear_anew(struct answers *a, struct place *place, struct place *turn)
{
    struct place *none = NULL;
    uint64_t never = 0, round = __atomic_load_n(&a->round, __ATOMIC_RELAXED);
    if (__atomic_compare_exchange_n(&place->since, &never, round, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        place->next = __atomic_load_n(&a->places, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(&a->places, &place->next, place, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            ;
        __atomic_compare_exchange_n(&a->turn, &none, turn, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&place->last, round, __ATOMIC_RELAXED);
}

/* A number that was told outside regions is in use in them: they cannot begin a round. */
static void note_call(struct answers *a, struct place *place)
{
    a->forked &= a->turn != NULL;
    hear_anew(a, place, place);
    a->kept |= a->turn->forked;
}

/* Where a round may begin. Returns whether the number may change. */
static bool end_round(struct answers *a, const struct place *place)
{
    if (a->kept || place != a->turn || !a->forked)
        return false;
    bool anew = true;
    for (const struct place *each = __atomic_load_n(&a->places, __ATOMIC_ACQUIRE); each; each = each->next) {
        a->kept |= each->last != a->round;
        anew &= each->since != a->round;
    }
    __atomic_store_n(&a->round, a->round + 1, __ATOMIC_RELAXED);
    a->forked = false;
    return anew && !a->kept;
}

int answer_region_anew(struct answers *a, struct place *place, int grant)
{
    if (!is_owner(a))
        return keep_for_good(a);
    int number = a->told;
    if (!a->turn)
        number = place->forked ? grant : WHOLE;
    else if (end_round(a, place))
        number = grant;
    place->forked = a->forked = true;
    __atomic_store_n(&a->region, place, __ATOMIC_RELAXED);
    return change(a, number);
}

int answer_call(struct answers *a, struct place *place, int grant)
{
    if (!is_owner(a))
        return keep_for_good(a);
    int number = a->told;
    if (!a->turn)
        number = WHOLE;
    else if (end_round(a, place))
        number = grant;
    note_call(a, place);
    return change(a, number);
}

void keep_number(struct answers *a, struct place *place, int number)
{
    if (!is_owner(a))
        return;
    note_call(a, place);
    change(a, number);
}
