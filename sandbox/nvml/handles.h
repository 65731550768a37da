/* Handles that callers hold: each is made of a kind and of the numbers of a board, a GPU instance
 * and a compute instance.
 *
 * So a handle is valid in every process, as long as the object that it names exists.
 */
#ifndef SLICEWISE_HANDLES_H
#define SLICEWISE_HANDLES_H

#include "state.h"

#define EXPORT __attribute__((visibility("default")))
#define ENTER()                                                                                    \
    do {                                                                                           \
        nvmlReturn_t entered = initialised ? state_enter(__func__) : NVML_ERROR_UNINITIALIZED;     \
        if (entered != NVML_SUCCESS)                                                               \
            return entered;                                                                        \
    } while (0)
/* After ENTER: the call ends with that code unless the condition holds. */
#define NEED(condition, code)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return state_leave(code);                                                              \
    } while (0)

enum { GPU = 1, MIG_DEVICE, GPU_INSTANCE, COMPUTE_INSTANCE };

/* How many more times nvmlInit was called than nvmlShutdown. */
extern unsigned int initialised;

void *handle(unsigned int kind, unsigned int board, unsigned int gi, unsigned int ci);
unsigned int kind_of(const void *handle);
unsigned int number_of(const void *handle);
unsigned int gi_of(const void *handle);
unsigned int ci_of(const void *handle);

/* The object that a handle or an id names; NULL if it is gone or of another kind. */
Board *any_board(const void *handle);
Board *gpu(nvmlDevice_t device);
Board *device_board(nvmlDevice_t device); /* of a GPU or a MIG device: both are devices */
Instance *gpu_instance(nvmlGpuInstance_t gi);
Compute *compute_of(const void *handle, unsigned int kind);
Instance *instance_by_id(Board *board, unsigned int id);
Compute *compute_by_id(Board *board, unsigned int gi, unsigned int id);
Profile *profile_by_id(Board *board, unsigned int id);

#endif
