#include "handles.h"

#include <stddef.h>
#include <stdint.h>

unsigned int initialised;

void *handle(unsigned int kind, unsigned int board, unsigned int gi, unsigned int ci)
{
    return (void *)(uintptr_t)(kind << 24 | board << 16 | gi << 8 | ci);
}

unsigned int kind_of(const void *handle) { return (unsigned int)((uintptr_t)handle >> 24); }
unsigned int number_of(const void *handle) { return (uintptr_t)handle >> 16 & 0xff; }
unsigned int gi_of(const void *handle) { return (uintptr_t)handle >> 8 & 0xff; }
unsigned int ci_of(const void *handle) { return (uintptr_t)handle & 0xff; }

Board *any_board(const void *handle)
{
    return number_of(handle) < state.board_count ? &state.boards[number_of(handle)] : NULL;
}

Board *gpu(nvmlDevice_t device)
{
    return kind_of(device) == GPU ? any_board(device) : NULL;
}

Instance *instance_by_id(Board *board, unsigned int id)
{
    for (unsigned int i = 0; i < board->instance_count; i++)
        if (board->instances[i].id == id)
            return &board->instances[i];
    return NULL;
}

Compute *compute_by_id(Board *board, unsigned int gi, unsigned int id)
{
    for (unsigned int i = 0; i < board->compute_count; i++)
        if (board->computes[i].gi == gi && board->computes[i].id == id)
            return &board->computes[i];
    return NULL;
}

Instance *gpu_instance(nvmlGpuInstance_t gi)
{
    Board *board = kind_of(gi) == GPU_INSTANCE ? any_board(gi) : NULL;
    return board ? instance_by_id(board, gi_of(gi)) : NULL;
}

Compute *compute_of(const void *handle, unsigned int kind)
{
    Board *board = kind_of(handle) == kind ? any_board(handle) : NULL;
    return board ? compute_by_id(board, gi_of(handle), ci_of(handle)) : NULL;
}

Profile *profile_by_id(Board *board, unsigned int id)
{
    for (unsigned int i = 0; i < board->profile_count; i++)
        if (board->profiles[i].id == id)
            return &board->profiles[i];
    return NULL;
}

Board *device_board(nvmlDevice_t device)
{
    int exists = kind_of(device) == GPU || compute_of(device, MIG_DEVICE) != NULL;
    return exists ? any_board(device) : NULL;
}
