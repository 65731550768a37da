/* libnvidia-ml.so.1 without a GPU: the calls that Slicewise makes, on emulated boards (state.h).
 *
 * Return codes and rules follow NVIDIA's NVML reference and MIG user guide.
 */
#include "handles.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MIB = 1024 * 1024, PCI_VENDOR = 0x10de };

/* Library and driver */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    nvmlReturn_t code = state_enter(__func__);
    if (code != NVML_SUCCESS)
        return code;
    initialised++;
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    initialised--;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER();
    snprintf(version, length, "%s", state.driver);
    return state_leave(NVML_SUCCESS);
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_ERROR_IN_USE:
        return "In use by another client";
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
        return "Insufficient Resources";
    default:
        return "Unknown Error";
    }
}

/* Devices */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER();
    *count = state.board_count;
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    ENTER();
    NEED(index < state.board_count, NVML_ERROR_INVALID_ARGUMENT);
    NEED(!state.boards[index].is_lost, NVML_ERROR_GPU_IS_LOST);
    *device = handle(GPU, index, 0, 0);
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ENTER();
    NEED(gpu(device), NVML_ERROR_INVALID_ARGUMENT);
    NEED(strlen(gpu(device)->name) < length, NVML_ERROR_INSUFFICIENT_SIZE);
    strcpy(name, gpu(device)->name);
    return state_leave(NVML_SUCCESS);
}

/* A MIG device's UUID depends only on its place, as the real driver's does: a device that is made
 * there again has the same UUID. */
static void mig_uuid(char *text, unsigned int length, const char *gpu_uuid, unsigned int gi,
                     unsigned int ci)
{
    uint64_t halves[2] = {0xcbf29ce484222325u ^ (gi << 8 | ci), 0x84222325cbf29ce4u};
    for (const char *at = gpu_uuid; *at; at++)
        for (int i = 0; i < 2; i++)
            halves[i] = (halves[i] ^ (unsigned char)*at ^ (halves[1 - i] >> 60)) * 0x100000001b3u;
    halves[1] ^= halves[0] >> 7;
    snprintf(text, length, "MIG-%08x-%04x-5%03x-8%03x-%012llx", (unsigned int)(halves[0] >> 32),
             (unsigned int)(halves[0] >> 16 & 0xffff), (unsigned int)(halves[0] & 0xfff),
             (unsigned int)(halves[1] >> 48 & 0xfff),
             (unsigned long long)(halves[1] & 0xffffffffffffu));
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER();
    for (unsigned int i = 0; i < state.board_count; i++)
        if (strcmp(state.boards[i].uuid, uuid) == 0) {
            NEED(!state.boards[i].is_lost, NVML_ERROR_GPU_IS_LOST);
            *device = handle(GPU, i, 0, 0);
            return state_leave(NVML_SUCCESS);
        }
    for (unsigned int i = 0; i < state.board_count; i++)
        for (unsigned int j = 0; j < state.boards[i].compute_count; j++) {
            Compute *one = &state.boards[i].computes[j];
            char its[64];
            mig_uuid(its, sizeof its, state.boards[i].uuid, one->gi, one->id);
            if (strcmp(its, uuid) == 0) {
                *device = handle(MIG_DEVICE, i, one->gi, one->id);
                return state_leave(NVML_SUCCESS);
            }
        }
    return state_leave(NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ENTER();
    Board *board = device_board(device);
    NEED(board, NVML_ERROR_INVALID_ARGUMENT);
    if (kind_of(device) == GPU)
        snprintf(uuid, length, "%s", board->uuid);
    else
        mig_uuid(uuid, length, board->uuid, gi_of(device), ci_of(device));
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER();
    NEED(gpu(device), NVML_ERROR_INVALID_ARGUMENT);
    memset(pci, 0, sizeof *pci);
    pci->pciDeviceId = gpu(device)->pci_device_id << 16 | PCI_VENDOR;
    snprintf(pci->busId, sizeof pci->busId, "%.31s", gpu(device)->bus_id);
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    ENTER();
    NEED(gpu(device), NVML_ERROR_INVALID_ARGUMENT);
    *minor = gpu(device)->minor;
    return state_leave(NVML_SUCCESS);
}

static int holds(const Process *process, nvmlDevice_t device)
{
    return kind_of(device) == GPU || (process->gi == (int)gi_of(device) &&
                                      process->ci == (int)ci_of(device));
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER();
    Board *board = device_board(device);
    NEED(board, NVML_ERROR_INVALID_ARGUMENT);
    unsigned long long total = board->memory_mib, used = 0;
    if (kind_of(device) == MIG_DEVICE)
        total = profile_by_id(board, instance_by_id(board, gi_of(device))->profile_id)->memory_mib;
    for (unsigned int i = 0; i < board->process_count; i++)
        if (holds(&board->processes[i], device))
            used += board->processes[i].memory_mib;
    *memory = (nvmlMemory_t){total * MIB, (total - used) * MIB, used * MIB};
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power_mw)
{
    ENTER();
    NEED(gpu(device), NVML_ERROR_NOT_SUPPORTED);
    *power_mw = gpu(device)->power_mw;
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit_mw)
{
    ENTER();
    NEED(gpu(device), NVML_ERROR_NOT_SUPPORTED);
    *limit_mw = gpu(device)->power_limit_mw;
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor,
                                             unsigned int *temperature_c)
{
    (void)sensor;
    ENTER();
    NEED(gpu(device), NVML_ERROR_NOT_SUPPORTED);
    *temperature_c = gpu(device)->temperature_c;
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int uncorrected,
                                                unsigned int counter, unsigned long long *count)
{
    (void)counter;
    ENTER();
    NEED(gpu(device), NVML_ERROR_NOT_SUPPORTED);
    *count = uncorrected ? gpu(device)->ecc_uncorrected : gpu(device)->ecc_corrected;
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
                                              unsigned int *uncorrected, unsigned int *pending,
                                              unsigned int *failed)
{
    ENTER();
    Board *board = gpu(device);
    NEED(board, NVML_ERROR_NOT_SUPPORTED);
    *corrected = *uncorrected = 0;
    *pending = board->remap_pending;
    *failed = board->remap_failed;
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                            unsigned int *count,
                                                            nvmlProcessInfo_t *infos)
{
    ENTER();
    Board *board = device_board(device);
    NEED(board, NVML_ERROR_INVALID_ARGUMENT);
    unsigned int room = *count;
    *count = 0;
    for (unsigned int i = 0; i < board->process_count; i++) {
        const Process *one = &board->processes[i];
        if (!holds(one, device))
            continue;
        if (infos && *count < room)
            infos[*count] = (nvmlProcessInfo_t){one->pid, (uint64_t)one->memory_mib * MIB,
                                                (unsigned int)one->gi, (unsigned int)one->ci};
        ++*count;
    }
    return state_leave(*count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

/* MIG mode and MIG devices */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                         unsigned int *pending)
{
    ENTER();
    NEED(gpu(device), NVML_ERROR_INVALID_ARGUMENT);
    NEED(gpu(device)->profile_count, NVML_ERROR_NOT_SUPPORTED);
    *current = gpu(device)->mig;
    *pending = gpu(device)->mig_pending;
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ENTER();
    NEED(gpu(device), NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    for (unsigned int i = 0; gpu(device)->mig && i < gpu(device)->profile_count; i++)
        if (gpu(device)->profiles[i].max > *count)
            *count = gpu(device)->profiles[i].max;
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                        nvmlDevice_t *mig_device)
{
    ENTER();
    Board *board = gpu(device);
    NEED(board, NVML_ERROR_INVALID_ARGUMENT);
    NEED(board->mig, NVML_ERROR_NOT_SUPPORTED);
    NEED(index < board->compute_count, NVML_ERROR_NOT_FOUND);
    Compute *one = &board->computes[index];
    *mig_device = handle(MIG_DEVICE, number_of(device), one->gi, one->id);
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER();
    NEED(compute_of(device, MIG_DEVICE), NVML_ERROR_INVALID_ARGUMENT);
    *id = gi_of(device);
    return state_leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER();
    NEED(compute_of(device, MIG_DEVICE), NVML_ERROR_INVALID_ARGUMENT);
    *id = ci_of(device);
    return state_leave(NVML_SUCCESS);
}
