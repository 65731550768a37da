/* GPU instances and compute instances: listing, making and removing them. */
#include "handles.h"

#include <stdio.h>
#include <string.h>

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int kind,
                                                         nvmlGpuInstanceProfileInfo_v2_t *info)
{
    ENTER();
    Board *board = gpu(device);
    NEED(board && kind < NVML_GPU_INSTANCE_PROFILE_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    NEED(board->mig, NVML_ERROR_NOT_SUPPORTED);
    for (unsigned int i = 0; i < board->profile_count; i++) {
        const Profile *one = &board->profiles[i];
        if (one->kind != kind)
            continue;
        unsigned int version = info->version;
        *info = (nvmlGpuInstanceProfileInfo_v2_t){
            .version = version,
            .id = one->id,
            .sliceCount = one->slices,
            .instanceCount = one->max,
            .multiprocessorCount = one->sm,
            .memorySizeMB = one->memory_mib,
        };
        snprintf(info->name, sizeof info->name, "MIG %.91s", one->name);
        return state_leave(NVML_SUCCESS);
    }
    return state_leave(NVML_ERROR_NOT_SUPPORTED);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device,
                                                                  unsigned int profile_id,
                                                                  nvmlPlacement_t *placements,
                                                                  unsigned int *count)
{
    ENTER();
    Profile *profile = gpu(device) ? profile_by_id(gpu(device), profile_id) : NULL;
    NEED(profile, NVML_ERROR_INVALID_ARGUMENT);
    NEED(gpu(device)->mig, NVML_ERROR_NOT_SUPPORTED);
    unsigned int room = *count;
    *count = profile->start_count;
    if (!placements)
        return state_leave(NVML_SUCCESS);
    NEED(room >= *count, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned int i = 0; i < *count; i++)
        placements[i] = (nvmlPlacement_t){profile->starts[i], profile->size};
    return state_leave(NVML_SUCCESS);
}

static int is_of_media(const Profile *profile) { return strstr(profile->name, "+me") != NULL; }

/* +me.all has the media engines of the whole board: only profiles without any fit beside it. */
static int leaves_no_media(const Profile *one, const Profile *other)
{
    return strstr(one->name, "+me.all") && !strstr(other->name, "-me");
}

/* Memory slices must be free, and so must those engines that a board has fewer of. */
static int fits(Board *board, const Profile *profile, unsigned int start)
{
    unsigned int alike = 0;
    for (unsigned int i = 0; i < board->instance_count; i++) {
        const Instance *other = &board->instances[i];
        const Profile *its = profile_by_id(board, other->profile_id);
        if (start < other->start + its->size && other->start < start + profile->size)
            return 0;
        if (leaves_no_media(its, profile) || leaves_no_media(profile, its))
            return 0;
        alike += its == profile || (is_of_media(its) && is_of_media(profile));
    }
    return alike < profile->max;
}

/* GPU instances are numbered by size: 0 is the whole board, 1 and 2 are halves, 3 to 6 quarters,
 * from 7 on eighths. */
static int free_id(Board *board, const Profile *profile, unsigned int *id)
{
    unsigned int parts = 1;
    while (parts * profile->size < board->memory_slices)
        parts *= 2;
    for (*id = parts - 1; *id < 2 * parts - 1; ++*id)
        if (!instance_by_id(board, *id))
            return 1;
    return 0;
}

static nvmlReturn_t create(nvmlDevice_t device, const Profile *profile, unsigned int start,
                           nvmlGpuInstance_t *gi)
{
    Board *board = gpu(device);
    unsigned int id;
    NEED(board->instance_count < MAX_INSTANCES && fits(board, profile, start) &&
             free_id(board, profile, &id),
         NVML_ERROR_INSUFFICIENT_RESOURCES);
    board->instances[board->instance_count++] = (Instance){id, profile->id, start};
    *gi = handle(GPU_INSTANCE, number_of(device), id, 0);
    return state_keep();
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device,
                                                             unsigned int profile_id,
                                                             const nvmlPlacement_t *placement,
                                                             nvmlGpuInstance_t *gi)
{
    ENTER();
    Profile *profile = gpu(device) ? profile_by_id(gpu(device), profile_id) : NULL;
    NEED(profile, NVML_ERROR_INVALID_ARGUMENT);
    NEED(gpu(device)->mig, NVML_ERROR_NOT_SUPPORTED);
    for (unsigned int i = 0; i < profile->start_count; i++)
        if (profile->starts[i] == placement->start && profile->size == placement->size)
            return create(device, profile, placement->start, gi);
    return state_leave(NVML_ERROR_INVALID_ARGUMENT);
}

/* Without a placement the driver takes the last start that is free, whatever that leaves for
 * others: so 3g beside 2g, 1g, 1g works only if 3g is made first. */
EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile_id,
                                                nvmlGpuInstance_t *gi)
{
    ENTER();
    Profile *profile = gpu(device) ? profile_by_id(gpu(device), profile_id) : NULL;
    NEED(profile, NVML_ERROR_INVALID_ARGUMENT);
    NEED(gpu(device)->mig, NVML_ERROR_NOT_SUPPORTED);
    for (unsigned int i = profile->start_count; i-- > 0;)
        if (fits(gpu(device), profile, profile->starts[i]))
            return create(device, profile, profile->starts[i], gi);
    return state_leave(NVML_ERROR_INSUFFICIENT_RESOURCES);
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gi)
{
    ENTER();
    Instance *instance = gpu_instance(gi);
    NEED(instance, NVML_ERROR_INVALID_ARGUMENT);
    Board *board = any_board(gi);
    for (unsigned int i = 0; i < board->compute_count; i++)
        NEED(board->computes[i].gi != instance->id, NVML_ERROR_IN_USE);
    *instance = board->instances[--board->instance_count];
    return state_keep();
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id,
                                              nvmlGpuInstance_t *instances, unsigned int *count)
{
    ENTER();
    Board *board = gpu(device);
    NEED(board && profile_by_id(board, profile_id), NVML_ERROR_INVALID_ARGUMENT);
    NEED(board->mig, NVML_ERROR_NOT_SUPPORTED);
    *count = 0;
    for (unsigned int i = 0; i < board->instance_count; i++)
        if (board->instances[i].profile_id == profile_id)
            instances[(*count)++] =
                handle(GPU_INSTANCE, number_of(device), board->instances[i].id, 0);
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                                 nvmlGpuInstance_t *gi)
{
    ENTER();
    NEED(gpu(device), NVML_ERROR_INVALID_ARGUMENT);
    NEED(gpu(device)->mig, NVML_ERROR_NOT_SUPPORTED);
    NEED(instance_by_id(gpu(device), id), NVML_ERROR_NOT_FOUND);
    *gi = handle(GPU_INSTANCE, number_of(device), id, 0);
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gi, nvmlGpuInstanceInfo_t *info)
{
    ENTER();
    Instance *instance = gpu_instance(gi);
    NEED(instance, NVML_ERROR_INVALID_ARGUMENT);
    unsigned int size = profile_by_id(any_board(gi), instance->profile_id)->size;
    *info = (nvmlGpuInstanceInfo_t){
        .device = handle(GPU, number_of(gi), 0, 0),
        .id = instance->id,
        .profileId = instance->profile_id,
        .placement = {instance->start, size},
    };
    return state_leave(NVML_SUCCESS);
}

/* Compute instances: an id is the number of its profile, NVML_COMPUTE_INSTANCE_PROFILE_* */

static const unsigned int COMPUTE_SLICES[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = {1, 2, 3, 4, 7,
                                                                                 8, 6, 1, 7};

/* The 1g of double memory has more processors than one slice: REV1 uses all of them. */
static int offers(const Profile *profile, unsigned int kind)
{
    if (kind == NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1)
        return profile->kind == NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2;
    return kind < NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1 &&
           COMPUTE_SLICES[kind] <= profile->slices;
}

static unsigned int processors(Board *board, const Profile *profile, unsigned int kind)
{
    if (COMPUTE_SLICES[kind] == profile->slices &&
        (profile->kind != NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2 ||
         kind == NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1))
        return profile->sm;
    for (unsigned int i = 0; i < board->profile_count; i++)
        if (board->profiles[i].slices == COMPUTE_SLICES[kind])
            return board->profiles[i].sm;
    return 0;
}

EXPORT nvmlReturn_t
nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gi, unsigned int kind,
                                              unsigned int engine_profile,
                                              nvmlComputeInstanceProfileInfo_v2_t *info)
{
    ENTER();
    Instance *instance = gpu_instance(gi);
    NEED(instance && kind < NVML_COMPUTE_INSTANCE_PROFILE_COUNT &&
             engine_profile == NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
         NVML_ERROR_INVALID_ARGUMENT);
    Profile *profile = profile_by_id(any_board(gi), instance->profile_id);
    NEED(offers(profile, kind), NVML_ERROR_NOT_SUPPORTED);
    unsigned int slices = COMPUTE_SLICES[kind], version = info->version;
    *info = (nvmlComputeInstanceProfileInfo_v2_t){
        .version = version,
        .id = kind,
        .sliceCount = slices,
        .instanceCount = profile->slices / slices,
        .multiprocessorCount = processors(any_board(gi), profile, kind),
    };
    if (slices == profile->slices)
        snprintf(info->name, sizeof info->name, "MIG %.91s", profile->name);
    else
        snprintf(info->name, sizeof info->name, "MIG %uc.%.80s", slices, profile->name);
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gi, unsigned int kind,
                                                         nvmlComputeInstance_t *ci)
{
    ENTER();
    Instance *instance = gpu_instance(gi);
    NEED(instance && kind < NVML_COMPUTE_INSTANCE_PROFILE_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    Board *board = any_board(gi);
    Profile *profile = profile_by_id(board, instance->profile_id);
    NEED(offers(profile, kind), NVML_ERROR_INVALID_ARGUMENT);
    unsigned int slices = COMPUTE_SLICES[kind], id = 0;
    for (unsigned int i = 0; i < board->compute_count; i++)
        if (board->computes[i].gi == instance->id)
            slices += COMPUTE_SLICES[board->computes[i].profile_id];
    NEED(slices <= profile->slices && board->compute_count < MAX_COMPUTES,
         NVML_ERROR_INSUFFICIENT_RESOURCES);
    while (compute_by_id(board, instance->id, id))
        id++;
    board->computes[board->compute_count++] = (Compute){instance->id, id, kind};
    *ci = handle(COMPUTE_INSTANCE, number_of(gi), instance->id, id);
    return state_keep();
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t ci)
{
    ENTER();
    Compute *compute = compute_of(ci, COMPUTE_INSTANCE);
    NEED(compute, NVML_ERROR_INVALID_ARGUMENT);
    Board *board = any_board(ci);
    for (unsigned int i = 0; i < board->process_count; i++)
        NEED(!(board->processes[i].gi == (int)compute->gi &&
               board->processes[i].ci == (int)compute->id),
             NVML_ERROR_IN_USE);
    *compute = board->computes[--board->compute_count];
    return state_keep();
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gi, unsigned int id,
                                                          nvmlComputeInstance_t *ci)
{
    ENTER();
    NEED(gpu_instance(gi), NVML_ERROR_INVALID_ARGUMENT);
    NEED(compute_by_id(any_board(gi), gi_of(gi), id), NVML_ERROR_NOT_FOUND);
    *ci = handle(COMPUTE_INSTANCE, number_of(gi), gi_of(gi), id);
    return state_leave(NVML_SUCCESS);
}
